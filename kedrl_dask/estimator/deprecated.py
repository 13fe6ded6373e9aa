"""What version one offered under a name that now means something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kedrl_dask.utils.exceptions import warn

if TYPE_CHECKING:
    from kedrl_dask.estimator.kedrl import KEDRL


class _CallableWord(str):
    """A word that calls a method of a model; its copies are plain words."""

    model: KEDRL

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        warn("model.operators(…) is deprecated; use model.operator_blocks(…)", DeprecationWarning)
        return self.model.operator_blocks(*inputs, **options)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class CallableParameter:
    """The parameter ``operators``, a plain word which a fitted model still lets you call.

    ``model.operators(state, action)`` was the name of :meth:`KEDRL.operator_blocks` in version one. The model
    stores the word itself, so that scikit-learn, copies and files see nothing else; reading it from a fitted
    model gives an equal word that can be called. Dropping the line of KEDRL that uses this class ends it.
    """

    def __get__(self, model: KEDRL | None, owner: type) -> Any:
        """Return the word; that of a fitted model can be called."""
        if model is None:
            return self
        value = vars(model)["operators"]
        if "fitted_" not in vars(model):
            return value
        word = _CallableWord(value)
        word.model = model
        return word

    def __set__(self, model: KEDRL, value: object) -> None:
        """Store the word itself."""
        model.__dict__["operators"] = value
