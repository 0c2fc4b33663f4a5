"""Thresholds of attribution: every value that was chosen on traces.

Limits on time or memory, and values that follow from a definition, stay beside their use.
`benchmarks/thresholds.py` measures how far the answers depend on these values, and
`docs/evidence/thresholds.md` reports the result.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of attribution. A share is a fraction of 1; every other name contains its unit."""

    # Backward passes, steps and transfers, as ranges tell them.

    served: float = 0.9
    """Least share of a thread's launches inside backward windows, and least share of the windows in
    which it launches, for an autograd thread without a telling name. Windows that were not
    recorded, or are cut at an edge of the recording, do not count; holes in the recording are why
    it is not 1."""
    like_others: float = 0.9
    """Share of the ops of the smallest middle iteration: one at an edge with fewer was cut,
    provided that the smallest has at least this share of the median too (iterations of one program
    differ by less). Also the least likeness of kernels before the first iteration to those in it,
    for a recording that begins within a step."""
    iterations_between: int = 2
    """Least number of iterations between the first and the last with which these are compared: one
    alone does not show how much iterations differ."""
    first_forward: float = 0.5
    """Least share of forward time in ranges with the name of the first forward range, for them to
    begin steps; with a smaller share it is the name of a layer."""
    relayed_bytes: int = 4096
    """Least bytes of a copy that relays data through the host; smaller ones are results."""
    told_apart: int = 2
    """Least number of the stages forward, backward and update that ranges of a thread must name for
    it to train beside others."""

    # What a process does.

    left: float = 0.01
    """Least share of kernel time without a stage from ranges for which structure is run. If
    structure agrees with ranges (except for `disagreement`), it decides that time. Also the least
    share that speaks against stages if it may be update or forward pass, beside fetched results."""
    unnamed: float = 0.1
    """Largest share of kernels with uninformative names for a verdict that nothing trains: 0 to 0.4
    % in four real traces of inference, 53 % in one of training by a compiler."""

    # What collectives are for.

    computing_stream: float = 0.5
    """Least share of a GPU's layer time on one stream for it to be the computing stream."""
    both_passes: float = 0.25
    """Least ratio of a collective's time (count times median) in one pass to that in the other for
    it to belong to passes: backward may compute forward again, forward may split its loss."""
    beside: float = 0.1
    """Largest share of a stream's collectives beside which the computing stream runs kernels, for
    it to count as waiting for each collective at once."""

    # What is worth a warning.

    disagreement: float = 0.1
    """Least share of GPU time on which two sources disagree that gives a warning."""
    disagreement_by_names: float = 0.5
    """Least share of GPU time on which two sources disagree that gives a warning, if one of them is
    names of kernels or kinds of copies alone, which are less reliable."""
    exchanged_forward: float = 0.5
    """Least share of gradient exchanges in forward that gives a warning: a model that is split over
    GPUs also exchanges in forward, but as often in backward."""
    far_above: float = 1.5
    """Ratio of FP to BP time above which there is a warning: backward does about twice the work of
    forward."""

    # The clock of a GPU against that of the calls.

    lead_parts: int = 10
    """Number of parts of the recording: a lead (of an op over its call) is steady if it is nearly
    the largest in half of them."""
    lead_edge: int = 3
    """Number of tenths at each end of the recording: at least one must show a GPU clock's lead, so
    that it holds throughout."""
    lead_steady_ns: int = 10_000
    """Largest distance from the largest lead that counts as nearly the largest, ns: in most real
    traces each tenth of the time has an op that starts no more than this later than the quickest. A
    smaller lead is not corrected."""
    quickest_start_ns: int = 7_000
    """Delay of the quickest op after its call, ns: 4 to 17 us in 14 real traces, median 7 us."""
    least_lag_ns: int = 20_000
    """Least delay of every op after its call for which a GPU clock may be ahead, ns: more than
    the delay of any quickest op."""
    early_returns: int = 10
    """Least number of waits that return before their work ends for a clock to be ahead: a single
    one may be misread."""
    jump_returns: int = 3
    """Least number of waits that return early from which a clock has jumped: delays of all ops
    since then agree with them. Of 36 jumps put into 12 real traces 3 waits find 31, 2 find 35,
    6 find 30; without a jump none finds any."""
    bounds_apart_ns: int = 50_000
    """Largest difference, ns, between the offsets of a GPU clock that is ahead by the earliest wait
    that returns before its work ends, and by the delay of ops: in 14 real traces the quickest wait
    returns up to 12 us after its work, and the quickest op starts up to 17 us after its call, 29 us
    together; other causes of held-back launches add to it."""
    prompt_ns: int = 100_000
    """Least delay of all launches on an idle GPU for which a clock is reported as ahead, ns: six
    times the largest quickest delay in real traces, 16 us."""
    idle_launches: int = 100
    """Least number of launches on an idle GPU for a report that the GPU's clock is ahead."""

    # What an op may be.

    batch_bytes: int = 1 << 16
    """Least bytes of a copy that may be of a batch: labels, counters and losses are smaller."""
    cleared: int = 3
    """Least number of fills at the start of a step that clear gradients: a single one is a new
    tensor."""
    alone_on_stream: float = 0.95
    """Ops without a call get a stage if at least this share of the other ops of their stream has
    that stage: a stray op does not make a stream one of several purposes."""

    # Which threads take turns.

    side_kernels: int = 5
    """Least number of kernels that each side of a pair launches: fewer make no pass."""
    begin_places: int = 3
    """Largest number of places of the program at which a backward pass may begin: training has one
    for each kind of step, and data pipelines can start anywhere."""
    begin_share: float = 0.8
    """Least share of the turns of a backward thread that begin at its few places: logging and
    evaluation break some."""
    one_sided: float = 0.8
    """Least share of a kind of ops on one side for the kind to vote for the roles."""
    votes: int = 2
    """Least surplus of votes for the roles: a single vote may be wrong."""
    stray: int = 2
    """Largest number of ops of a gap that is ignored if it has no layer: a value that is fetched
    while backward runs."""

    layers_beside: float = 0.1
    """Least share of layers in a thread's kernels for it to run a network, and not input."""

    # Gaps between turns, and where they are cut.

    pause: float = 5.0
    """Least ratio of a pause of the host to the median one for it to count as unusual."""
    often: float = 0.05
    """Least share of the gaps in a kind that counts as frequent; it also needs two gaps."""
    own_kind: float = 0.15
    """Least share of the gaps in a kind, ending in another forward pass, that is cut by itself."""
    own_gaps: int = 3
    """Least number of gaps in a kind, ending in another forward pass, that is cut by itself."""
    same_forward: float = 0.5
    """Least share of ops in which the end of a gap agrees with the usual forward pass."""
    same_update: float = 0.8
    """Least share of ops in which a gap agrees with the usual one, or least ratio of its length to
    that one's, for its update to be the usual one."""
    barely: int = 2
    """Number of kernels that an update must exceed: averaging a loss takes as many."""
    update: float = 0.1
    """Share of the ops of a backward pass that an unnamed update must exceed: it handles as
    many parameters as backward has gradients."""
    short_pass: float = 0.9
    """Share of the median backward pass below which a pass was cut off, or has holes."""
    backward_layers: float = 1.75
    """Usual ratio of layer kernels in a backward pass to those in its forward pass: two products
    for each layer, but one kernel for each attention or norm."""
    whole_pass: float = 0.5
    """Least share of the layers of a forward pass in a part of a gap that is one as well:
    evaluation has no loss, and a small network has as many kernels for the loss as for layers."""
    lone_gram: int = 4
    """Number of successive ops by which a forward pass is recognised."""
    partial_forward: float = 0.9
    """Least share of ops in which the end of a recording agrees with the begin of a forward pass to
    be one."""
    known_network: float = 0.3
    """Share of the start-up's ops that the network also runs, above which the start-up may hold
    evaluation."""
    few_usual: float = 0.5
    """Share of gaps of the usual kind below which a contradiction is reported."""
    acting_input: float = 0.5
    """Share of a step's input below which passes alone may choose actions: 0.25 in simulated
    rollouts, 0.98 in a recorded evaluation of MNIST."""

    # Which passes are one step.

    rhythm: float = 0.9
    """Least share of updates that follow a rhythm for the rhythm to count."""
    updates_of_step: int = 64
    """Largest number of updates of one step, as told by its input."""
    same_network: float = 0.75
    """Least share of common kernels of two backward passes of one network."""
    fed_gaps: int = 2
    """Least number of gaps with input, and of gaps without, for comparing these."""

    # Backward passes of a single thread, by names.

    bursts: int = 4
    """Least number of backward passes: with fewer it is unknown what each contains."""
    backward_named: float = 0.1
    """Least share of all layers inside the backward passes that names give: kernels of these names
    that mark no layer are gradients of something else."""
    hooks: float = 0.2
    """Share of the distances between gradients that contain an optimizer or input, above which
    hooks of backward may call the optimizer, so that it parts no passes."""
    near: float = 20.0
    """Median distance between gradients, ops, below which hooks of backward call the optimizer."""
    least_break: float = 8.0
    """Distance between two gradients, ops, up to which they belong to one pass."""
    broken: float = 1.5
    """Ratio between successive sorted distances above which the largest ratio marks a break."""
    far: float = 64.0
    """Distance between two gradients, ops, above which they belong to different passes if there are
    too few distances for a break (at most `named`). If more distances show no break, these
    gradients are of one pass."""
    few_named: float = 0.1
    """Share of the usual number of gradients below which a group of them is no pass; nor is a group
    of fewer than 3."""

    readings: float = 0.05
    """Largest share of time in which two readings of one thread may differ and still agree: up to 2
    % in real traces, where both are right except for the ends of passes."""

    # How a single thread's launches repeat.

    order_kernels: int = 30
    """Least number of kernels of one thread for an estimate by order: fewer repeat by chance."""
    order_repeats: float = 2.5
    """Least number of periods, so that one step is complete wherever a recording begins."""
    order_steps: int = 2
    """Least number of steps that are like the usual one: it is always like itself."""
    order_alike: float = 0.5
    """Least share of steps that are like the one that is split into stages."""
    order_updates: int = 3
    """Least number of updates for these to show where training is."""
    iterates: float = 0.9
    """Least share of a process's launches in its repetitions for these to be iterations."""
    iterated_symbols: int = 3
    """Least number of different ops in an iteration: fewer are an inner loop."""
    results_per_step: float = 1.5
    """Least number of results, or of batches, per step, each after about as many layers, for a step
    to be said to hold several passes: one is usual, and two or more are of requests."""
    period_share: float = 0.9
    """Least share of ops that equal the op one period later."""
    period_shortest: int = 8
    """Shortest period that is estimated, ops; all shorter ones are counted exactly, unless updates
    tell about how long a period is."""
    period_near: float = 0.2
    """Largest difference of a period from the median distance of updates, as a share of that
    distance: steps vary by less."""
    period_always: float = 0.6
    """Least number of occurrences of a symbol per period for it to count; symbols of start-up and
    evaluation do not."""
    period_mostly: float = 0.5
    """Least share of ops with symbols that count."""
    pieces_alike: float = 0.5
    """Least share of the parts between updates that are alike."""
    anchor_shortest: int = 4
    """Least number of ops by which the beginning of a step is found."""
    anchor: int = 12
    """Largest number of ops by which the beginning of a step is found; between the least and the
    largest number it is a third of a step."""
    repeats_agree: float = 0.7
    """Least share of ops in which a step agrees with the usual one."""
    repeats_apart: float = 0.5
    """Least distance of the begins of steps, as a share of a period."""
    repeats_enough: float = 0.6
    """Least share of a last step that was recorded for it to count as a step."""

    # How a step of a single thread is taken apart.

    sized: float = 0.5
    """Least share of the kernels before an update with known launch sizes."""
    mirror: float = 0.12
    """Least share of a step's weight in the nest of equal sizes."""
    mirror_launches: int = 6
    """Least number of launches whose sizes occur more than once, for a nest to be made of them."""
    mirror_sizes: int = 3
    """Least number of different launch sizes that occur more than once, for a nest to be made of
    them: with fewer, no place is distinct."""
    signs: int = 2
    """Least number of signs of training in a step: a single one may be wrong."""
    named: int = 2
    """Least number of kernels named after gradients in backward, and least ratio to those
    before."""
    named_before: float = 0.2
    """Largest share of gradient kernels before the middle of the mirror image: up to 9 % if that is
    the right place, and 40 % in the one trace where it is not."""
    earliest_turn: float = 0.1
    """Share of the passes (forward and backward) before which backward cannot begin."""
    latest_turn: float = 0.8
    """Share of the passes after which backward cannot begin."""
    evaluated_again: float = 0.8
    """Least share of its layers in which evaluation agrees with the forward pass after it."""
    gram: int = 10
    """Number of successive ops that count as the same ops run again."""
    again: int = 4
    """Least number of successive kernels that backward launches as forward does, for it to compute
    them again."""
    again_kinds: int = 3
    """Least number of different kernels in a sequence that backward launches as forward does:
    passes repeat single kernels in any order."""
    recomputed: float = 0.1
    """Share of backward that may look like forward before it counts as layers computed again."""


THRESHOLDS = Thresholds()
