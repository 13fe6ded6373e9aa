"""How things show themselves in notebooks."""

from __future__ import annotations

import pytest

from kedrl_dask import KEDRL, Matern, policies

SIZES = {"n_atoms": 8, "n_basis": 10, "n_landmarks": 16, "n_features": 12, "n_blocks": 4}


@pytest.mark.filterwarnings("ignore:reward and continuation")
def test_model__shows_settings_and_then_what_the_fit_found(small_store):
    model = KEDRL(0.6, centring="none", input_kernel=Matern(2.5, 1.5), **SIZES)
    assert "Bellman risk" not in model._repr_html_()
    assert "KEDRL" in model._repr_mimebundle_()["text/html"]
    policy = policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)
    model.fit(small_store, policy, progress="none")
    shown = model._repr_mimebundle_(include=None, exclude=None)
    assert shown["text/plain"] == repr(model)
    for part in ("KEDRL, fitted", "Bellman risk", "40 in 8 episodes", "8, 10, 12"):
        assert part in shown["text/html"]
    model.diagnostics_["policy"] = "<script>alert(1)</script>"
    assert "<script>" not in model._repr_html_()


def test_plan_and_store__are_tables(small_store):
    plan = KEDRL(0.6, centring="none", **SIZES).plan(small_store, calibrate=False)
    for shown in (plan._repr_html_(), small_store._repr_html_()):
        assert shown.startswith("<table>")
    assert "streaming pass" in plan._repr_html_()
