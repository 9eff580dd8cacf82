"""How a drafter is made, and the target of the tiny pair with it."""
