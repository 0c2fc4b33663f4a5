"""Bit fields that encode the evidence for the stage of a launch or an op.

The stage (such as FP, BP, WU) is a function of these bits. They take few distinct values, so it is
decided once per value. A stage within them takes three bits: its index in the list of stages,
counted from 1; 0 is none.
"""

STAGE_BITS = 3
STAGE = (1 << STAGE_BITS) - 1
"""Mask of the bits of a stage, to apply after a shift to its first bit."""

RANGE_STAGE = 0
"""First bit of the stage of the nearest range with a stage, on the launching thread."""
PROCESS_STAGE = RANGE_STAGE + STAGE_BITS
"""First bit of the stage of start/end ranges of the process."""
TRAINER_STAGE = PROCESS_STAGE + STAGE_BITS
"""First bit of the stage of the nearest range with a stage, on the training thread."""

IN_EVALUATION = 1 << (TRAINER_STAGE + STAGE_BITS)
"""The launch lies in a range of metric evaluation on its own thread."""
IN_AUTOGRAD = IN_EVALUATION << 1
"""The launch lies in an autograd marker on its own thread."""
TRAINER_EVALUATES = IN_AUTOGRAD << 1
"""The training thread is in a range of metric evaluation."""
IN_WINDOW = TRAINER_EVALUATES << 1
"""The launch lies in a backward window of its team."""

ON_INPUT_STREAM = IN_WINDOW << 1
"""First of the bits of an op, see `Launch`; the bits before are those of its launch."""
RELAYED = ON_INPUT_STREAM << 1
STRUCTURE = RELAYED.bit_length()
"""First bit of the op's stage by structure."""
PLACE = STRUCTURE + STAGE_BITS
"""First bit of the stage of a collective by the layer kernels around it."""
SIZE = PLACE + STAGE_BITS
"""First bit of the number of size thresholds that the op's bytes reach."""
KIND_PLACE = SIZE + 17
"""First bit of the op's entry in the list of kinds, which takes the remaining bits."""
PROCESS = 32
"""First bit of the process in the number that encodes an op's process and thread."""
