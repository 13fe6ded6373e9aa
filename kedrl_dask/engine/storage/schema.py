"""Every array that the package stores, declared once: name, dimensions, dtype, meaning.

``array_store`` creates arrays from these declarations and checks existing ones against them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ArraySpec:
    """Declaration of one stored array."""

    name: str
    dims: tuple[str, ...]  # arrays of one group that name the same dimension agree in its size
    dtype: str
    meaning: str  # one sentence, stored as an attribute of the array


Specs = tuple[ArraySpec, ...]

# One row per recorded time point, sorted by (episode, step): the successor of a row is the next row.
TRANSITIONS: Specs = (
    ArraySpec("state", ("row", "state_dim"), "float64", "state at the recorded time"),
    ArraySpec("action", ("row", "action_dim"), "float64", "action taken in that state"),
    ArraySpec("reward", ("row", "reward_dim"), "float64", "reward vector received for that action"),
    ArraySpec("episode", ("row",), "int64", "number of the episode; rows never decrease in it"),
    ArraySpec("step", ("row",), "int64", "time within the episode; rises by one from row to row"),
    ArraySpec("terminated", ("row",), "bool", "the episode ends here and nothing follows (not truncation)"),
)

# Only of full chunks: the digests of a last, partial chunk change with the next append, so they are
# committed together with the number of rows, in the attributes of the group.
TRANSITION_DIGESTS = ArraySpec(
    "chunk_digest",
    ("chunk", "stored_array", "digest_byte"),
    "uint8",
    "sha256 of each full chunk of rows, for state, action, reward, episode, step, terminated in turn",
)

# Results of the streaming pass: sums over blocks of whole episodes. Any weighting of the episodes that is
# constant on blocks (folds, bootstrap, leaving out, adding) is a weighted sum of these. psi is a linear image
# of the features phi. Three parts are cached separately by their dependencies: the inputs alone; the return
# kernel as well; the policy as well.
INPUT_SUMS: Specs = (
    ArraySpec("gram", ("block", "rank", "rank_again"), "float64", "sum of psi psi^T"),
    ArraySpec("mass", ("block", "rank"), "float64", "sum of psi"),
    ArraySpec("count", ("block",), "float64", "number of transitions"),
)
REWARD_SUMS: Specs = (
    ArraySpec(
        "reward", ("block", "rank", "wave"), "float64", "sum of phi exp(iWr)^T, real and imaginary in turn"
    ),
    ArraySpec("reward_sum", ("block", "wave"), "float64", "sum of exp(iWr), real and imaginary in turn"),
    ArraySpec("terminal", ("block", "rank", "wave"), "float64", "sum of phi exp(iWr)^T over terminal rows"),
)
# A trend m of the reward; it adds further sums, and waves are then those of the residual e = r - m(x).
TREND: Specs = (
    ArraySpec("trend_center", ("input_dim",), "float64", "mean input"),
    ArraySpec("trend_weights", ("input_dim", "reward_dim"), "float64", "weights of the reward's trend"),
    ArraySpec("trend_mean", ("reward_dim",), "float64", "reward's trend at the mean input"),
)
TREND_SUMS: Specs = (
    ArraySpec(
        "trend_gram", ("block", "trend_term", "trend_term_again"), "float64", "sum of (1, x - center) squared"
    ),
    ArraySpec("trend_cross", ("block", "trend_term", "reward_dim"), "float64", "sum of (1, x - center) e^T"),
)
RESPONSE_SUMS: Specs = (
    ArraySpec(
        "response", ("block", "rank", "response_rank"), "float64",
        "sum of phi phi_Z^T, with phi_Z the features of the reward under the return kernel",
    ),
)  # fmt: skip
CONTINUATION_SUMS: Specs = (
    ArraySpec("continuation", ("block", "rank", "basis"), "float64", "sum of phi kappa^T"),
    ArraySpec("continuation_sum", ("block", "basis"), "float64", "sum of kappa"),
    ArraySpec("scalar", ("block", "scalar_name"), "float64", "the numbers named in BLOCK_SCALARS"),
)

# Sums over blocks of episodes from which the density ratio is estimated.
RATIO_SUMS: Specs = (
    ArraySpec("second", ("block", "center", "center_again"), "float64", "sum of k k^T at logged successors"),
    ArraySpec("denominator", ("block", "center"), "float64", "sum of k at logged successors"),
    ArraySpec("numerator", ("block", "center"), "float64", "sum of k at actions of the target policy"),
    ArraySpec("count", ("block",), "int64", "number of transitions that have a successor"),
)

# Sums over the block, except for the extremes of the density ratio over transitions with a successor.
BLOCK_SCALARS = ("successors", "continuation_square", "ratio", "ratio_square", "ratio_min", "ratio_max")

# What the criterion needs of the conditioning points, in the precision of its products; T is the whitening of
# the basis. The target is stored in features, or as H and G from the kernel itself; its terminal arrays only
# where an episode terminates. The last array depends on the policy and is stored separately.
CONDITIONING_INPUTS: Specs = (
    ArraySpec("input", ("point", "input_dim"), "float64", "state and action of the conditioning point"),
    ArraySpec("weight", ("point",), "float64", "weight of the point in the criterion; they sum to one"),
)
CONDITIONING: Specs = (
    *CONDITIONING_INPUTS,
    ArraySpec("mass", ("point",), "float64", "sum of the conditional weights Gamma"),
    ArraySpec("basis", ("point", "basis"), "float64", "T^T k_L, the kernel with the state-action basis"),
)
CONDITIONING_FEATURES: Specs = (
    ArraySpec("reward_waves", ("point", "wave"), "float64", "rho, real and imaginary in turn"),
    ArraySpec("terminal_waves", ("point", "wave"), "float64", "tau, real and imaginary in turn"),
)
CONDITIONING_BLOCKS: Specs = (
    ArraySpec("h", ("point", "atom", "atom_again"), "float64", "H: grid sections with the shifted target's"),
    ArraySpec("g", ("point", "atom", "atom_again"), "float64", "G: sections of the shifted target"),
    ArraySpec("grid_terminal", ("point", "atom"), "float64", "grid sections with the terminal target"),
    ArraySpec("shifted_terminal", ("point", "atom"), "float64", "shifted sections with the terminal target"),
    ArraySpec("terminal_square", ("point",), "float64", "squared norm of the terminal target"),
)
CONDITIONING_CONTINUATION: Specs = (
    ArraySpec("continuation", ("point", "basis"), "float64", "T^T Phi_L, the kernel expected next"),
)

# The contracted target of the paired construction: its sums, which alternate between two arrays as the pass
# proceeds, and the operator computed from them.
PAIRED_SUMS: Specs = tuple(
    ArraySpec(name, ("wave", "rank", "basis"), "float64", "sum of phi cos(w r) or sin(w r) (T^T kappa)^T")
    for name in ("first", "second")
)
PAIRED_OPERATOR: Specs = (
    ArraySpec("operator", ("frequency", "rank", "basis"), "complex128", "P_w, the target operator"),
)

# The choices of a fit that do not depend on the policy: a sample of transitions, landmarks and basis from it,
# and the return grid.
SAMPLE: Specs = (
    ArraySpec("rows", ("transition",), "int64", "row in the store"),
    ArraySpec("episode", ("transition",), "int64", "episode"),
    ArraySpec("inputs", ("transition", "input_dim"), "float64", "state and action"),
    ArraySpec("reward", ("transition", "reward_dim"), "float64", "reward"),
    ArraySpec("next_state", ("transition", "state_dim"), "float64", "successor's state"),
    ArraySpec("next_action", ("transition", "action_dim"), "float64", "successor's action"),
    ArraySpec("terminal", ("transition",), "bool", "the episode ended with this transition"),
)
NYSTROM: Specs = (
    ArraySpec("landmarks", ("landmark", "input_dim"), "float64", "Nystrom landmarks"),
    ArraySpec("whitening", ("landmark", "rank"), "float64", "T, from kernel sections to features psi"),
)
BASIS = ArraySpec("basis", ("basis", "input_dim"), "float64", "state-action basis")
POINTS: Specs = (
    *NYSTROM,
    BASIS,
    ArraySpec("basis_whitening", ("basis", "basis_rank"), "float64", "T of the basis"),
)
POTENTIAL: Specs = (
    ArraySpec("potential_center", ("state_dim",), "float64", "mean state"),
    ArraySpec("potential_scale", ("state_dim",), "float64", "standard deviation of the states"),
    ArraySpec("potential_directions", ("state_dim", "direction"), "float64", "coordinates of the potential"),
    ArraySpec("potential_landmarks", ("potential_landmark", "direction"), "float64", "its landmarks"),
    ArraySpec("potential_weights", ("potential_landmark", "reward_dim"), "float64", "its kernel weights"),
    ArraySpec("potential_slopes", ("state_dim", "reward_dim"), "float64", "its linear weights"),
    ArraySpec("potential_constant", ("reward_dim",), "float64", "its constant"),
)
SIMULATED: Specs = (
    ArraySpec("simulated_input", ("simulation", "input_dim"), "float64", "inputs of simulated returns"),
    ArraySpec("simulated", ("simulation", "reward_dim"), "float64", "simulated returns less the potential"),
    ArraySpec("relevance", ("input_dim", "reward_dim"), "float64", "sensitivity of the mean return"),
    ArraySpec(
        "lengths",
        ("length", "input_dim"),
        "float64",
        "kernel lengths along what the mean return depends on",
    ),
)
TRANSITION_MODEL: Specs = (
    ArraySpec("transition_model", ("number",), "float64", "its numbers, laid out as the attributes say"),
)
RETURNS: Specs = (ArraySpec("grid", ("atom", "reward_dim"), "float64", "atoms of the return grid"),)

MASS = ArraySpec("mass", ("rank",), "float64", "regression coefficients of the constant 1")
# A fitted model: everything needed to evaluate the embedding and the Bellman risk at new inputs.
MODEL: Specs = (
    ArraySpec("coefficients", ("basis", "atom"), "float64", "B, signed: not probabilities"),
    *RETURNS,
    BASIS,
    ArraySpec("frequencies", ("frequency", "reward_dim"), "float64", "spectral frequencies W"),
    *NYSTROM,
    ArraySpec("continuation", ("rank", "basis"), "float64", "regression coefficients of kappa"),
    ArraySpec("reward", ("rank", "wave"), "float64", "regression coefficients of exp(iWr)"),
    MASS,
    ArraySpec("history", ("record", "history_column"), "float64",
              "iteration, criterion and certificate of the solver"),
)  # fmt: skip

# A conditional embedding of observed responses.
REFERENCE: Specs = (
    *NYSTROM,
    ArraySpec("response_landmarks", ("response_landmark", "response_dim"), "float64", "return landmarks"),
    ArraySpec("response_whitening", ("response_landmark", "response_rank"), "float64", "T of these"),
    ArraySpec("coefficients", ("rank", "response_rank"), "float64", "regression coefficients of psi_Z"),
    MASS,
)

# Optional arrays of a model: where an episode terminates, in the paired construction, with an estimated
# density ratio, with exact operators, and with a trend of the reward.
MODEL_TERMINAL: Specs = (
    ArraySpec(
        "terminal", ("rank", "wave"), "float64", "regression coefficients of exp(iWr) on terminal rows"
    ),
)
MODEL_PAIRED: Specs = (
    ArraySpec("target", ("rank", "wave"), "float64", "coefficients of the paired target at B on psi"),
)
MODEL_RATIO: Specs = (
    ArraySpec("ratio_centers", ("center", "input_dim"), "float64", "kernel centres of the density ratio"),
    ArraySpec("ratio_alpha", ("center",), "float64", "coefficients of the density ratio"),
)
MODEL_TRANSITIONS: Specs = (
    ArraySpec("transition_input", ("transition", "input_dim"), "float64", "state and action"),
    ArraySpec("transition_reward", ("transition", "reward_dim"), "float64", "reward"),
    ArraySpec("transition_terminal", ("transition",), "bool", "the episode ended with this transition"),
)
MODEL_TREND: Specs = (
    *TREND,
    ArraySpec("residual_waves", ("wave",), "float64", "mean of exp(iWe), e the reward less its trend"),
)
