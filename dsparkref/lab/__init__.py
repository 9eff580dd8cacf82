"""What a person looks at: figures, and the cycle view in a terminal."""
