"""Thresholds of attribution: every number that was chosen on traces.

Limits on time or memory, and numbers that follow from a definition, stay beside their use.
`benchmarks/thresholds.py` measures how far the answers depend on these numbers, and
`docs/evidence/thresholds.md` tells the result.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """The thresholds. A share is a fraction of 1; every other name says its unit."""

    # Backward passes, steps and transfers, as ranges tell them.

    served: float = 0.9
    """Share of a thread's launches that lie in backward windows, and of these that it serves, for
    it to count as an autograd thread without being named so. Windows that are not recorded, or cut
    at an edge of what is, do not count; holes in the recording are why it is not 1."""
    like_others: float = 0.9
    """Share of the ops of the least iteration between, below which one at an edge was cut there, if
    that least one is as like the usual one: iterations of one program differ by less. So alike
    must be kernels before the first iteration and its own, for a recording to begin within one."""
    iterations_between: int = 2
    """Iterations that must lie between the first and the last for these to be compared with them:
    one alone does not show how much they differ."""
    first_forward: float = 0.5
    """Share of the time of forward ranges that those with the name of the first one must take for
    them to begin steps: less is that of a layer."""
    relayed_bytes: int = 4096
    """Bytes from which on a copy by way of the host is no result that is read."""
    told_apart: int = 2
    """How many of forward, backward and update a thread must tell apart to train beside others."""

    # What a process does.

    left: float = 0.01
    """Share of the time of kernels that ranges must leave untold for structure to be asked. If it
    agrees with what they tell, but for `disagreement`, it tells what they leave."""
    unnamed: float = 0.1
    """Share of the kernels whose names say nothing, above which it is not known that nothing
    trains: 0 to 0.4 % in four real traces of inference, 53 % in one of training by a compiler."""

    # What collectives are for.

    computing_stream: float = 0.5
    """Share of the time of a GPU's layers that one stream must run to be its computing stream."""
    both_passes: float = 0.25
    """How many times as often as in one pass a collective must come in the other to belong to them:
    backward may compute forward anew, and forward has a loss that is split."""
    beside: float = 0.1
    """Share of a stream's collectives beside which kernels of the computing stream may run, where
    it waits for each at once."""

    # What is worth a warning.

    disagreement: float = 0.1
    """Share of GPU time about which two sources must disagree for it to be told."""
    disagreement_by_names: float = 0.5
    """The same where one of the two goes by names or kinds alone, which say less."""
    exchanged_forward: float = 0.5
    """Share of the exchanges of gradients: a model that is split over GPUs exchanges in forward as
    well, but as often in backward."""
    far_above: float = 1.5
    """How many times as long as BP is, FP is too long to be believed without a word: backward does
    about twice the work of forward."""

    # The clock of a GPU against that of the calls.

    lead_parts: int = 10
    """Parts of the time: a lead is steady if it is nearly the largest in half of them."""
    lead_edge: int = 3
    """Of so many parts at either end, one must show the lead: so it holds throughout."""
    lead_steady_ns: int = 10_000
    """What is nearly the largest lead, ns: in most real traces some op of each tenth of the time
    takes no more than that longer to start than the quickest. A lesser lead is not corrected."""
    quickest_start_ns: int = 7_000
    """How long after its call the quickest op starts, ns: 4 to 17 us in 14 real traces, and 7 us in
    the middle."""
    least_lag_ns: int = 20_000
    """How long after its call each op must start for the clock to be looked at as late, ns: more
    than any of the quickest."""
    early_returns: int = 10
    """Waits that must return before their work ends for a clock to be late: one may be misread."""
    bounds_apart_ns: int = 50_000
    """By how much what the first of these waits says may differ from how late ops are, ns: in 14
    real traces the quickest wait returns up to 12 us after its work, and the quickest op starts up
    to 17 us after its call, which makes 29; what else holds back launches adds to it."""
    prompt_ns: int = 100_000
    """A clock is told to be late if no launch on an idle GPU takes less, ns: six times the 16 us
    that the slowest of these quickest starts takes in real traces."""
    idle_launches: int = 100
    """Launches on an idle GPU that must agree for that."""

    # What an op may be.

    batch_bytes: int = 1 << 16
    """Bytes from which on a copy may be of a batch: labels, counters and losses are smaller."""
    cleared: int = 3
    """Fills at the start of a step from which on these clear gradients: one is a new tensor."""
    alone_on_stream: float = 0.95
    """Share of a stream's ops that must be of one stage for those without a call to be of it too:
    a stray op does not make a stream one of several purposes."""

    # Which threads take turns.

    side_kernels: int = 5
    """Kernels that either side must have launched: fewer make no pass."""
    begin_places: int = 3
    """At how many places of the program a backward pass may begin: training has one for each kind
    of step, and data pipelines come in anywhere."""
    begin_share: float = 0.8
    """Share of the turns that must begin at these: logging and evaluation break some."""
    one_sided: float = 0.8
    """Share of a kind of ops that one side must have for it to vote."""
    votes: int = 2
    """By how many votes the roles must be told: one may err."""
    stray: int = 2
    """A gap of so few ops is none, if no layer is in it: a value fetched while backward runs."""

    layers_beside: float = 0.1
    """Share of a thread's kernels that must be layers for it to run a network, and no input."""

    # Gaps between turns, and where they are cut.

    pause: float = 5.0
    """How many times the median pause of the host one must be to stand out."""
    often: float = 0.05
    """Share of the gaps that a kind has to make up, besides two, to count as often."""
    own_kind: float = 0.15
    """Share of the gaps from which on a kind that ends in another forward pass is cut by itself."""
    own_gaps: int = 3
    """And how many such gaps there must be."""
    same_forward: float = 0.5
    """Share of its places in which a gap's end must agree with the usual forward pass."""
    same_update: float = 0.8
    """Share of places in which a gap must agree with the usual one, or be as long, for its update
    to be that one."""
    barely: int = 2
    """Kernels that an update must exceed: a loss that is averaged takes as many."""
    update: float = 0.1
    """Share of a backward pass' ops that an update without a name must exceed, too: it handles as
    many parameters as backward has gradients."""
    short_pass: float = 0.9
    """Share of the median backward pass below which one is cut off, or has holes."""
    backward_layers: float = 1.75
    """How many times the layers of its forward pass a backward pass runs: two products for each,
    but one kernel for each attention or norm."""
    whole_pass: float = 0.5
    """Share of the layers of a forward pass that a part of a gap must have to be one as well:
    evaluation has no loss, and a little network as many kernels of that as of layers."""
    lone_gram: int = 4
    """Ops in a row by which a forward pass is known again."""
    partial_forward: float = 0.9
    """Share of places in which the end of a recording must agree with the beginning of a forward
    pass to be one."""
    known_network: float = 0.3
    """Share of the start-up's ops that must be the network's for it to hold evaluation."""
    few_usual: float = 0.5
    """Share of the gaps that must be the usual one for no contradiction to be told."""

    # Which passes are one step.

    rhythm: float = 0.9
    """Share of updates that must follow a rhythm for it to count."""
    updates_of_step: int = 64
    """How many updates one step may have, told by its input."""
    same_network: float = 0.75
    """Share of the kernels of two backward passes that must be the same for one network."""
    fed_gaps: int = 2
    """Minimum number of gaps with input, and of gaps without, to compare these."""

    # Backward passes of a single thread, by names.

    bursts: int = 4
    """How many passes must be told: of fewer it is not known what comes in each."""
    backward_named: float = 0.1
    """Share of all layers that backward passes must hold that names tell: what marks no layer is
    a gradient of something else."""
    hooks: float = 0.2
    """Share of the distances between gradients with an optimizer in them, above which it may be
    called by hooks of backward."""
    near: float = 20.0
    """Ops that lie between two gradients there, at most."""
    least_break: float = 8.0
    """Ops between two gradients up to which they are of one pass."""
    broken: float = 1.5
    """How many times the next longest distance one must be for a break."""
    far: float = 64.0
    """Ops between gradients of different passes, where nothing breaks."""
    few_named: float = 0.1
    """Share of the usual number of gradients below which some are no pass."""

    readings: float = 0.05
    """Share of the time in which two readings of one thread may differ and still agree: up to 2 %
    in real traces, where both are right but for the ends of passes."""

    # How a single thread's launches repeat.

    order_kernels: int = 30
    """Kernels that one thread must launch for its order to be asked: fewer repeat by chance."""
    order_repeats: float = 2.5
    """How often a period must come for a step to be seen whole wherever a recording begins."""
    order_steps: int = 2
    """Steps that must be like the usual one: one alone is like itself."""
    order_alike: float = 0.5
    """Share of the steps that must be like the one that is taken apart."""
    order_updates: int = 3
    """Updates that must be seen for them to say where training is."""
    iterates: float = 0.9
    """Share of a process' launches that must be in its repetitions for them to be iterations."""
    iterated_symbols: int = 3
    """A repetition of fewer different ops is a loop inside of something."""
    period_share: float = 0.9
    """Share of the places that must agree with those one period later."""
    period_shortest: int = 8
    """Ops of the shortest period that is estimated; shorter ones are all looked at."""
    period_near: float = 0.2
    """By which share a period may differ from the distance of updates: steps vary by less."""
    period_always: float = 0.6
    """Share of the periods that a symbol must occur in to count; start-up and evaluation do not."""
    period_mostly: float = 0.5
    """Share of the places that such symbols must make up."""
    pieces_alike: float = 0.5
    """Share of the pieces between updates that must be alike."""
    anchor_shortest: int = 4
    """Ops, at the least, by which the beginning of a step is found."""
    anchor: int = 12
    """Ops, at the most; between these a third of a step."""
    repeats_agree: float = 0.7
    """Share of its places in which a step must agree with the usual one."""
    repeats_apart: float = 0.5
    """Share of a period that steps begin apart, at the least."""
    repeats_enough: float = 0.6
    """Share of a last step that must be recorded for it to be told as one."""

    # How a step of a single thread is taken apart.

    sized: float = 0.5
    """Share of the kernels before an update whose sizes of launches must be known."""
    mirror: float = 0.12
    """Share of a step's weight that must be in the nest of equal sizes."""
    mirror_launches: int = 6
    """Launches whose sizes come more than once that a nest must be made of."""
    mirror_sizes: int = 3
    """Different sizes among them: with fewer any place is as good as another."""
    signs: int = 2
    """How many signs of training a step must show: one may err."""
    named: int = 2
    """So many kernels named for gradients must be in backward, and so many times as many as
    before."""
    named_before: float = 0.2
    """Share of the kernels of gradients that may come before the middle of the mirror image: up to
    9 % do where that is the right place, and 40 % in the one trace where it is not."""
    earliest_turn: float = 0.1
    """Share of the passes before which forward does not turn into backward."""
    latest_turn: float = 0.8
    """And after which it does not."""
    evaluated_again: float = 0.8
    """Share of its layers in which evaluation must agree with the forward pass after it."""
    gram: int = 10
    """Ops in a row that count as the same ones done again."""
    again: int = 4
    """Kernels in a row that backward must launch as forward does, for it to compute them again."""
    again_kinds: int = 3
    """Different ones among these: passes repeat single kernels in any order."""
    recomputed: float = 0.1
    """Share of backward that may look like forward before it is taken for layers computed again."""


THRESHOLDS = Thresholds()
