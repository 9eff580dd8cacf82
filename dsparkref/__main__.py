"""``python -m dsparkref``."""

from dsparkref.cli import app

if __name__ == "__main__":
    app()
