"""Who reads a cell's weight in a network's forward besides calling the cell: an adapter's numbers are not in there, but
a merged weight's would be. Found in the source of the cells' classes.

What is followed: the attributes of a cell, numbered entries of its lists, a name that is given once, what a method of
one line returns, and the methods that a forward calls on any cell. A branch that the cell's settings close is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from mindspore import nn

from adapters.cell_forms import forward_of, methods_of, plain_class
from adapters.cells import WEIGHTS, plain_cells

FACTS = ("dtype", "shape", "ndim", "size", "name", "requires_grad", "device")
"""What a weight may be asked for without its numbers."""
ASKING = ("isinstance", "hasattr", "type", "id")
SETTINGS = (ast.Attribute, ast.Name, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, *ast.cmpop.__subclasses__())
SETTINGS += (ast.boolop, ast.unaryop, ast.expr_context)
"""What a condition on a cell's settings is made of; `evaluated` runs nothing else."""
UNKNOWN = object()


def weights_read(model: nn.Cell, wanted: dict[int, str], tables: bool) -> Iterator[tuple[str, str]]:
    """Which of some cells have their weights read, and the class of the cell that does it.

    Args:
        wanted: {id of a cell: its path}.
        tables: that these are embeddings, whose table a tied head reads. Such a one is also named where it can but be
            suspected: it is given to a function, or its table is read behind a name that stands for several cells.
            Of others only what is read in any case counts.
    """
    todo = [(cell, "construct") for _, cell in (("", model), *plain_cells(model))]
    done = set()
    while todo:
        cell, name = todo.pop()
        if (id(cell), name) in done:
            continue
        done.add((id(cell), name))
        itself = name != "construct" and all(one.name != name for one in forward_of(plain_class(cell)))
        for method in (one for one in methods_of(plain_class(cell)) if one.name == name):
            view = View(cell, method)
            todo += view.called()
            for path in view.read(wanted, tables, itself):
                yield path, plain_class(cell).__name__


class View:
    """A method, with what its names mean for one cell."""

    def __init__(self, cell: nn.Cell, method: ast.FunctionDef):
        self.nodes = list(ast.walk(method))
        self.above = {id(below): node for node in self.nodes for below in ast.iter_child_nodes(node)}
        self.first = method.args.args[0].arg if method.args.args else ""
        given = [node for node in self.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        aliases = {node.id: self.above[id(node)] for node in given if isinstance(self.above[id(node)], ast.Assign)}
        arguments = {node.arg for node in self.nodes if isinstance(node, ast.arg)}
        once = {name for name in aliases if sum(node.id == name for node in given) == 1} - arguments
        self.cell, self.aliases = cell, {name: aliases[name].value for name in once}

    def meant(self, node: ast.expr) -> Any:
        """What an expression stands for, as far as the network says it."""
        try:
            if isinstance(node, ast.Name):
                return self.cell if node.id == self.first else self.meant(self.aliases[node.id])
            if isinstance(node, ast.Attribute):
                owner = self.meant(node.value)
                return owner if owner is UNKNOWN else getattr(owner, node.attr)
            if isinstance(node, ast.Subscript):
                owner = self.meant(node.value)
                return owner if owner is UNKNOWN else owner[ast.literal_eval(node.slice)]
            if isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute):
                owner = self.meant(node.func.value)
                (method,) = (one for one in methods_of(plain_class(owner)) if one.name == node.func.attr)
                (returned,) = (one for one in method.body if not isinstance(getattr(one, "value", None), ast.Constant))
                return View(owner, method).meant(returned.value) if isinstance(returned, ast.Return) else UNKNOWN
        except Exception:  # whatever a network's own properties raise
            pass
        return UNKNOWN

    def called(self) -> Iterator[tuple[nn.Cell, str]]:
        """The methods of cells that are used here."""
        for node in self.nodes:
            owner = self.meant(node.value) if isinstance(node, ast.Attribute) else UNKNOWN
            if isinstance(owner, nn.Cell) and any(one.name == node.attr for one in methods_of(plain_class(owner))):
                yield owner, node.attr

    def read(self, wanted: dict[int, str], tables: bool, itself: bool) -> Iterator[str]:
        """The paths of the wanted cells whose weights are read; ``itself``: also of the one whose method it is."""
        for node in self.nodes:
            if not isinstance(node, ast.expr) or not (reading := self.reads(node, tables)):
                continue
            owner = self.meant(node)
            path = wanted.get(id(owner))
            if path is not None and (itself or owner is not self.cell) and self.runs(node, tables):
                yield path
            elif owner is UNKNOWN and tables and reading in WEIGHTS[1:]:
                yield from wanted.values()

    def reads(self, node: ast.expr, tables: bool) -> str:
        """What of a cell is read where this expression stands for it: its weight's name, a word, or nothing."""
        above = self.above.get(id(node))
        if isinstance(above, ast.Attribute) and above.attr in WEIGHTS:
            use = self.above.get(id(above))
            asked = (
                getattr(use, "attr", None) in FACTS
                or (isinstance(use, ast.Call) and getattr(use.func, "id", None) in (*ASKING, "getattr", "len"))
                or (isinstance(use, ast.Compare) and isinstance(use.ops[0], (ast.Is, ast.IsNot)))
            )
            return "" if asked else above.attr
        if tables and isinstance(above, ast.Call) and node is not above.func:
            return "" if getattr(above.func, "id", None) in ASKING else "all"
        return ""

    def runs(self, node: ast.AST, suspected: bool) -> bool:
        """Whether the forward comes to an expression; where no setting decides it, `suspected`."""
        while (above := self.above.get(id(node))) is not None:
            if isinstance(above, (ast.If, ast.IfExp)) and node is not above.test:
                body = above.body if isinstance(above.body, list) else [above.body]
                decided, taken_if = self.evaluated(above.test), any(one is node for one in body)
                if not (suspected if decided is UNKNOWN else decided is taken_if):
                    return False
            node = above
        return True

    def evaluated(self, test: ast.expr) -> Any:
        """Whether a condition holds, where the cell's settings alone decide it."""
        for one in ast.walk(test):
            if not isinstance(one, SETTINGS) or getattr(one, "attr", "") == "training":
                return UNKNOWN
        try:
            return bool(eval(compile(ast.Expression(test), "", "eval"), {"__builtins__": {}}, {self.first: self.cell}))
        except Exception:
            return UNKNOWN
