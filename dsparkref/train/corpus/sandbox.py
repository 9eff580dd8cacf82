"""Running a generated function safely: a small subset of Python, and nothing else.

The replies are our own model's output, so the danger is not malice but nonsense: an
endless loop, an import, a list that eats the memory. What the corpus never uses is
therefore refused before anything runs.
"""

import ast
from types import CodeType

ALLOWED_NODES = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Expr,
    ast.Assign, ast.AugAssign, ast.Name, ast.Load, ast.Store, ast.Constant,
    ast.If, ast.IfExp, ast.For, ast.List, ast.ListComp, ast.GeneratorExp,
    ast.comprehension, ast.Compare, ast.BinOp, ast.Call, ast.Attribute,
    ast.Subscript, ast.Slice, ast.Add, ast.Sub, ast.Mult, ast.Mod,
    ast.Eq, ast.Lt, ast.Gt,
)  # fmt: skip
ALLOWED_CALLS = {"abs": abs, "len": len, "max": max, "min": min, "sum": sum}
ALLOWED_METHODS = frozenset({"append", "upper"})
TYPES = {"int": int, "list": list, "bool": bool, "str": str}
LOOPS = (ast.For, ast.ListComp, ast.GeneratorExp)


class SnapshotLoops(ast.NodeTransformer):
    """Let every `for` walk over a copy, so that appending to it must end."""

    def visit_For(self, node: ast.For) -> ast.For:
        """Wrap what the loop walks over in `list(...)`."""
        copy = ast.Name("list", ast.Load())
        node.iter = ast.Call(copy, [node.iter], [])
        return node


def is_allowed(node: ast.AST) -> bool:
    """Whether one node of the syntax tree belongs to the subset."""
    if isinstance(node, ast.Call):
        method = isinstance(node.func, ast.Attribute)
        return method or getattr(node.func, "id", None) in ALLOWED_CALLS
    if isinstance(node, ast.Attribute):
        return node.attr in ALLOWED_METHODS
    if isinstance(node, ast.FunctionDef):
        return not node.decorator_list
    return isinstance(node, ALLOWED_NODES)


def compile_function(source: str) -> CodeType | None:
    """The compiled source, or None where it leaves the subset (or is no Python).

    >>> compile_function("def f(x):\\n    return x + 1") is None
    False
    >>> compile_function("import os") is None
    True
    >>> compile_function("def f(x):\\n    while True:\\n        x += 1") is None
    True
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = list(ast.walk(tree))
    if not all(map(is_allowed, nodes)) or sum(isinstance(n, LOOPS) for n in nodes) > 1:
        return None
    tree = ast.fix_missing_locations(SnapshotLoops().visit(tree))
    return compile(tree, "reply", "exec")


def satisfies(source: str, calls: list) -> bool:
    """Whether the source defines a function that gives every call its right value.

    >>> satisfies("def f(x):\\n    return x * 3", [["f(2)", 6], ["f(5)", 15]])
    True
    >>> satisfies("def f(x):\\n    return x + 3", [["f(2)", 6]])
    False
    """
    code = compile_function(source)
    if code is None:
        return False
    namespace = {"__builtins__": ALLOWED_CALLS | TYPES}
    try:
        exec(code, namespace)
        values = [eval(call, namespace) for call, _ in calls]
    except Exception:  # whatever the reply's own code raises, the answer is wrong
        return False
    return all(
        type(value) is type(right) and value == right
        for value, (_, right) in zip(values, calls, strict=True)
    )
