"""What checks the annotated shapes while tests run: beartype, with int as float.

PEP 484 lets an int stand where a float is asked for; beartype does so when told.
"""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
