"""The Matérn kernel: its values, its limits at zero and far away, its precision, its parameters."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import gammaln
from sklearn.gaussian_process.kernels import Matern as ReferenceMatern

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.spectral import frequencies
from tests import dense

HALF_INTEGERS, OTHERS = (0.5, 1.5, 2.5, 5.5), (0.3, 0.8, 1.0, 2.2, 7.3)
SMOOTHNESS = HALF_INTEGERS + OTHERS
LENGTHS = (0.7, 1.25, 3.0)


def points(n, dim=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, dim))


@pytest.mark.parametrize("length_scale", [1.25, LENGTHS])
@pytest.mark.parametrize("nu", SMOOTHNESS)
def test_gram__agrees_with_the_bessel_formula(nu, length_scale):
    kernel = Matern(nu, length_scale, 0.85)
    x, y = points(12), np.vstack([points(9, seed=1), points(3)])  # three points in common
    np.testing.assert_allclose(kernel(x, y), dense.gram(kernel, x, y), rtol=2e-12, atol=1e-13)


@pytest.mark.parametrize("nu", SMOOTHNESS)
def test_gram__agrees_with_scikit_learn(nu):
    x, y = points(15), points(10, seed=1)
    reference = ReferenceMatern(length_scale=LENGTHS, nu=nu)(x, y)
    np.testing.assert_allclose(Matern(nu, LENGTHS)(x, y), reference, rtol=1e-11)


@pytest.mark.parametrize("nu", SMOOTHNESS)
def test_gram__single_precision_stays_single_and_accurate(nu):
    kernel = Matern(nu, LENGTHS, 0.85)
    x, y = points(30).astype(np.float32), points(20, seed=1).astype(np.float32)
    values = kernel(x, y)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, dense.gram(kernel, x.astype(float), y.astype(float)), atol=1e-5)


@pytest.mark.parametrize(
    ("first", "second"), [("float32", "float64"), ("int64", "int64"), ("int64", "float64")]
)
def test_gram__mixed_or_integer_inputs_are_worked_in_double(first, second):
    x, y = np.array([[0, 1], [2, 3]]), np.array([[1, 1], [4, 0]])
    values = Matern(1.5, 2.0)(x.astype(first), y.astype(second))
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, dense.gram(Matern(1.5, 2.0), x, y), rtol=1e-13)


def test_gram__inputs_are_left_alone():
    x = points(5)
    before = x.copy()
    Matern(5.5, 2.0)(x, x)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(("dtype", "shift"), [("float64", 0.0), ("float64", 1e6), ("float32", 1e4)])
@pytest.mark.parametrize("nu", SMOOTHNESS)
def test_gram__zero_distance_gives_the_variance(nu, dtype, shift):
    x = (shift + points(20)).astype(dtype)
    kernel = Matern(nu, LENGTHS, 0.85)
    # Single precision: spread² times eps, times the logarithm of Bessel functions at ν = 1.
    tolerance = {"float64": 1e-14, "float32": 3e-6}[dtype]
    np.testing.assert_allclose(np.diag(kernel(x, x.copy())), 0.85**2, atol=tolerance, rtol=0)
    copies = np.repeat(x[:1], 4, axis=0)
    np.testing.assert_allclose(kernel(copies, copies), 0.85**2, rtol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("nu", SMOOTHNESS)
def test_gram__shift_far_from_the_origin_changes_nothing(nu):
    x, y, shift = points(10), points(8, seed=1), 2.0**20  # exact up to the last bits of x
    shifted = Matern(nu, LENGTHS)(x + shift, y + shift)
    np.testing.assert_allclose(shifted, Matern(nu, LENGTHS)(x, y), atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nu", SMOOTHNESS)
def test_gram__tiny_distances_approach_the_variance_from_below(nu, dtype):
    smallest = np.finfo(dtype).tiny
    far_to_near = np.concatenate([10.0 ** -np.arange(1, 30.0), [smallest, smallest / 4]]).astype(dtype)
    values = Matern(nu)(np.zeros((1, 1), dtype), far_to_near[:, None])[0]
    # Logarithms of Bessel functions of 10⁻³⁰ have lost two digits.
    tolerance = {"float32": 1e-6, "float64": 1e-13}[dtype]
    assert np.isfinite(values).all()
    assert (values <= 1 + tolerance).all()
    assert (np.diff(values) >= -tolerance).all()
    assert values[-1] >= 1 - tolerance


@pytest.mark.parametrize("nu", [0.3, 0.5, 0.8])
def test_gram__rough_kernel_at_tiny_distances_keeps_its_slope(nu):
    kernel = Matern(nu)
    near = np.array([[0.0], [1e-9], [1e-6], [1e-3]])
    # 1 − k is what a distance from a matrix product would lose.
    got = 1 - kernel(1.0 + near, np.array([[1.0]]))[:, 0]
    expected = 1 - dense.gram(kernel, 1.0 + near, np.array([[1.0]]))[:, 0]
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nu", [*SMOOTHNESS, 20.5])
@pytest.mark.parametrize("distance", [1e4, 1e7, 1e12, 1e30])
def test_gram__huge_distances_give_exact_zeros(nu, dtype, distance):
    x = np.array([[-distance, 0], [0, 0], [1, 0], [distance, 0], [0, distance]], dtype)
    values = Matern(nu, 1.0, 0.85)(x, x)
    apart = np.ones((5, 5), bool)
    apart[1:3, 1:3] = False
    apart[np.diag_indices(5)] = False
    assert values.dtype == dtype
    assert (values[apart] == 0).all()
    if distance > 1e15:  # nearer, the common centre costs digits where points lie so far apart
        np.testing.assert_allclose(np.diag(values), 0.85**2, rtol=1e-6)


@pytest.mark.parametrize("nu", [5.5, 7.3])
def test_gram__squares_beyond_double_precision_give_exact_zeros(nu):
    x = np.array([[-1e200], [0.0], [1e200]])
    np.testing.assert_array_equal(Matern(nu)(x, x), np.eye(3))


@pytest.mark.parametrize("nu", [60.0, 140.3, 200.3, 1000.0])
def test_gram__large_smoothness_agrees_with_the_gaussian_mixture(nu):
    """k(r) = E exp(−νr²/2g) for g ~ Gamma(ν): K_ν overflows here, at ever larger distances."""

    def mixture(r):
        def density(g):
            return np.exp((nu - 1) * np.log(g) - g - gammaln(nu) - nu * r**2 / (2 * g))

        low, high = max(nu - 12 * np.sqrt(nu), 1e-9), nu + 14 * np.sqrt(nu)
        return quad(density, low, high, points=[nu], limit=300)[0]

    distances = np.array([1e-3, 0.05, 0.3, 0.8, 1.5, 3.0])
    values = Matern(nu)(np.zeros((1, 1)), distances[:, None])[0]
    np.testing.assert_allclose(values, [mixture(r) for r in distances], atol=1e-6)


@pytest.mark.parametrize("nu", [0.8, 2.2, 2.5])
def test_gram__missing_values_are_not_hidden(nu):
    x = points(4)
    x[1, 2] = np.nan
    values = Matern(nu)(x, points(3, seed=1))
    assert np.isnan(values[1]).all()
    assert np.isfinite(values[[0, 2, 3]]).all()


@settings(max_examples=40, deadline=None)
@given(
    nu=st.sampled_from(SMOOTHNESS) | st.floats(0.05, 15),
    length=st.floats(0.1, 10),
    sigma=st.floats(0.1, 10),
    n=st.integers(1, 25),
    dim=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_gram__is_symmetric_and_positive_semidefinite(nu, length, sigma, n, dim, seed):
    x = np.random.default_rng(seed).normal(size=(n, dim))
    values = Matern(nu, length, sigma)(x, x)
    np.testing.assert_allclose(values, values.T, rtol=1e-10, atol=1e-12 * sigma**2)
    assert (values >= 0).all()
    assert (values <= sigma**2 * (1 + 1e-14)).all()
    assert np.linalg.eigvalsh(values).min() >= -1e-11 * n * sigma**2


def test_anisotropic__each_length_scales_its_own_coordinate():
    x, y = points(10), points(10, seed=1)
    scaled = Matern(2.5)(x / np.array(LENGTHS), y / np.array(LENGTHS))
    np.testing.assert_allclose(Matern(2.5, LENGTHS)(x, y), scaled, rtol=1e-13)
    assert not np.allclose(Matern(2.5, LENGTHS[::-1])(x, y), scaled)


def test_anisotropic__wrong_number_of_lengths_is_refused():
    with pytest.raises(ValueError, match="3 length scales for points of dimension 2"):
        Matern(1.5, LENGTHS)(points(4, dim=2), points(4, dim=2))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"nu": 0}, "nu"), ({"nu": -1.5}, "nu"), ({"nu": np.nan}, "nu"), ({"nu": np.inf}, "nu"),
        ({"length_scale": 0.0}, "length_scale"), ({"length_scale": (1.0, -1.0)}, "length_scale"),
        ({"length_scale": ()}, "length_scale"), ({"length_scale": (1.0, np.nan)}, "length_scale"),
        ({"sigma": 0.0}, "sigma"), ({"sigma": -1.0}, "sigma"),
    ],
)  # fmt: skip
def test_parameters__that_define_no_kernel_are_refused(arguments, name):
    with pytest.raises(ValueError, match=f"{name} must be positive and finite"):
        Matern(**arguments)


@pytest.mark.parametrize("length_scale", [2.0, (1.0, 2.0), [1.0, 2.0], np.array([1.0, 2.0])])
def test_dictionary__survives_json(length_scale):
    kernel = Matern(2.2, length_scale, 0.85)
    again = Matern.from_dict(json.loads(json.dumps(kernel.to_dict())))
    assert again == kernel
    assert hash(again) == hash(kernel)


@pytest.mark.parametrize("nu", [1.5, 2.5, 5.5, 10.5])
def test_single_precision__is_accurate_at_every_distance(nu):
    """To a few units in the last place where the kernel is not small, and to 10⁻⁶ of k(x, x) everywhere."""
    kernel = Matern(nu, 0.7, 1.3)
    x = np.linspace(0.0, 40.0, 20_001)[:, None]
    origin = np.zeros((1, 1))
    exact = kernel(x, origin)[:, 0]
    single = kernel(x, origin, out=np.empty((len(x), 1), np.float32))[:, 0]
    np.testing.assert_allclose(single, exact, atol=1e-6 * kernel.sigma**2)
    near = exact > 1e-3
    np.testing.assert_allclose(single[near], exact[near], rtol=3e-6)
    assert single[0] == np.float32(kernel.sigma**2)
    assert (single >= 0).all()
    assert single[-1] == 0


def test_single_precision__into_any_memory():
    """Rows or columns apart from each other, or in one piece: the same values, and nothing else touched."""
    rng = np.random.default_rng(0)
    x, y, kernel = rng.normal(size=(700, 3)), rng.normal(size=(200, 3)), Matern(5.5, 2.0)
    expected = kernel(x, y, out=np.empty((700, 200), np.float32))
    wide = np.full((700, 402), -1.0, np.float32)
    np.testing.assert_array_equal(kernel(x, y, out=wide[:, 1:201]), expected)
    assert (wide[:, [0, *range(201, 402)]] == -1).all()
    np.testing.assert_array_equal(kernel(x, y, out=wide[:, 0:400:2]), expected)
    assert (wide[:, 401] == -1).all()


def test_single_precision__not_a_number_stays_one():
    x = np.array([[0.0], [np.nan]])
    values = Matern(5.5)(x, np.zeros((1, 1)), out=np.empty((2, 1), np.float32))
    assert values[0, 0] == 1
    assert np.isnan(values[1, 0])


DIRECTIONS = ((1.0, 2.0, 0.0), (0.0, 0.5, -1.0), (3.0, 0.0, 1.0))


def test_directions__are_coordinates_of_unit_length():
    kernel, x, y = Matern(2.5, DIRECTIONS, 0.8), points(20), points(15, seed=1)
    turned = [z @ np.linalg.inv(np.array(DIRECTIONS)) for z in (x, y)]
    np.testing.assert_allclose(kernel(x, y), Matern(2.5, 1.0, 0.8)(*turned), atol=1e-12)
    np.testing.assert_allclose(kernel.unscale(kernel.scale(x)), x, atol=1e-12)
    one_away = kernel.lengths(3)[:, None] * np.eye(3)
    np.testing.assert_allclose(np.linalg.norm(kernel.scale(one_away), axis=1), 1.0)


def test_directions__of_the_coordinates_are_their_lengths():
    kernel, plain, x = Matern(5.5, np.diag(LENGTHS)), Matern(5.5, LENGTHS), points(20)
    np.testing.assert_allclose(kernel(x, x), plain(x, x), atol=1e-12)
    np.testing.assert_allclose(kernel.lengths(3), plain.lengths(3))
    np.testing.assert_allclose(plain.unscale(plain.scale(x)), x)


def test_directions__survive_json_and_can_be_hashed():
    kernel = Matern(5.5, DIRECTIONS)
    assert Matern.from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
    assert hash(kernel) == hash(Matern(5.5, [list(row) for row in DIRECTIONS]))


@pytest.mark.parametrize(
    "matrix",
    [np.ones((3, 2)), np.ones((2, 2)), np.full((2, 2), np.nan), np.zeros((2, 2)), np.ones((2, 2, 2))],
)
def test_directions__that_span_nothing_are_refused(matrix):
    with pytest.raises(ValueError, match="length_scale"):
        Matern(5.5, matrix)


def test_directions__are_for_inputs():
    kernel, x = Matern(5.5, DIRECTIONS), points(4)
    with pytest.raises(ValueError, match="kernels of inputs"):
        kernel.smoothed(x, x, 1.0)
    with pytest.raises(ValueError, match="kernels of inputs"):
        frequencies(kernel, 3, 16)
    with pytest.raises(ValueError, match="3 length scales for points of dimension 2"):
        kernel(x[:, :2], x[:, :2])
