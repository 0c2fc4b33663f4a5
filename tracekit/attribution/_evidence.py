"""Evidence for the stage of launches and ops, as bits of numbers.

Launches have few distinct ones, so what these mean is worked out once for each. A stage takes three
bits: its place in the list of stages, counted from 1; 0 is none.
"""

STAGE_BITS = 3
STAGE = (1 << STAGE_BITS) - 1
"""The bits of a stage, from the first of them on."""

RANGE_STAGE = 0
"""The first bit of the stage of the nearest range that has one, on the launch's own thread."""
PROCESS_STAGE = RANGE_STAGE + STAGE_BITS
"""Of the stage of start/end ranges of the process."""
TRAINER_STAGE = PROCESS_STAGE + STAGE_BITS
"""Of the stage of the nearest range that has one, on the training thread."""

IN_EVALUATION = 1 << (TRAINER_STAGE + STAGE_BITS)
"""The launch lies in a range of metric evaluation on its own thread."""
IN_AUTOGRAD = IN_EVALUATION << 1
"""It lies in an autograd marker there."""
TRAINER_EVALUATES = IN_AUTOGRAD << 1
"""The training thread is in a range of metric evaluation."""
IN_WINDOW = TRAINER_EVALUATES << 1
"""It lies in a backward window of its team."""

ON_INPUT_STREAM = IN_WINDOW << 1
"""Of an op, see `Launch`; so are those that follow. Its launch is in the bits before."""
RELAYED = ON_INPUT_STREAM << 1
STRUCTURE = RELAYED.bit_length()
"""The first bit of the stage that structure tells."""
PLACE = STRUCTURE + STAGE_BITS
"""Of the stage that the place of a collective tells."""
SIZE = PLACE + STAGE_BITS
"""Of how many thresholds the bytes reach."""
KIND_PLACE = SIZE + 17
"""Of the entry in the list of what ops are, which are the last bits."""
PROCESS = 32
"""Where an op's process and thread are one number: the first bit of the process."""
