"""Write the signatures of the estimators, and the documentation of their parameters.

``python -m accelerando.estimators._signatures`` does it, after a change of the table in
``_parameters.py``.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from accelerando.estimators._parameters import REST, parameters_of

FILES = {
    "NeuralNet": "_neural_net.py",
    "NeuralNetClassifier": "_classifier.py",
    "NeuralNetBinaryClassifier": "_binary_classifier.py",
    "NeuralNetRegressor": "_regressor.py",
}
START, END = "    # generated signature", "    # end of the generated signature"


def signature(name: str) -> str:
    """Return the ``__init__`` of a class as source text."""
    lines = [START, "    def __init__(", "        self,"]
    for parameter in parameters_of(name):
        default = f" = {parameter.default}" if parameter.default else ""
        note = "  # noqa: B008  as skorch has it" if "ValidSplit" in default else ""
        lines.append(f"        {parameter.name}: {parameter.type}{default},{note}")
        # skorch's NeuralNet takes its parameters by position; the others only the module.
        last = "torch_load_kwargs" if name == "NeuralNet" else "module"
        if parameter.name == last:
            lines.append("        *,")
    # The signature of NeuralNet is for its own users; its subclasses go past it.
    base = "super()" if name == "NeuralNet" else "super(NeuralNet, self)"
    lines += ["        **kwargs: Any,", "    ) -> None:", f"        {base}.__init__("]
    for parameter in parameters_of(name):
        lines.append(f"            {parameter.name}={parameter.name},")
    lines += ["            **kwargs,", "        )", "", END]
    return "\n".join(lines)


def documentation(name: str) -> str:
    """Return the *Parameters* section of a class as source text."""
    lines = ["Parameters", "----------"]
    for parameter in parameters_of(name):
        lines.append(f"{parameter.name} : {parameter.kind}")
        lines += textwrap.wrap(parameter.text, 92, initial_indent="    ", subsequent_indent="    ")
    lines += REST.splitlines()
    return textwrap.indent("\n".join(lines), "    ")


def generated(name: str, source: str) -> str:
    """Return the source of a class with its signature and documentation from the table."""
    before, rest = source.split("    Parameters\n    ----------\n", 1)
    _, rest = rest.split("\n    Attributes\n    ----------\n", 1)
    docs = documentation(name)
    source = f"{before}{docs}\n\n    Attributes\n    ----------\n{rest}"
    before, rest = source.split(START, 1)
    _, rest = rest.split(END, 1)
    return f"{before}{signature(name)}{rest}"


def main() -> None:
    """Write the signatures and the documentation into the files of the classes."""
    for name, file in FILES.items():
        path = Path(__file__).with_name(file)
        path.write_text(generated(name, path.read_text()))


if __name__ == "__main__":
    main()
