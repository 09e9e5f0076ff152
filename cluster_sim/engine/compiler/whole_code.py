"""Machine code of a function together with all that it calls, made by numba in one go.

Numba makes each function ready to run: it optimises the function with everything that it calls,
makes machine code of that, and repeats both in each of its callers. Only a function that Python
calls ever runs by itself. So here the others are left as they come until all of them are together,
which takes a third off the time of compiling.

Only :mod:`cluster_sim.engine.compiler.jit` loads this module, and only to compile,
since it loads numba.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.core import types as numba_types
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import models, register_model

types: Any = numba_types


def compile_whole(dispatcher: Any, signature: tuple[Any, ...]) -> tuple[str, str, int, bytes]:
    """Compile a function for arguments of some types.

    Returns its symbol in the object file, numba's name of its result's type, the number of its
    parameters in machine code, and the object file.
    """
    context = cpu_target.target_context
    usual = context._internal_codegen
    with global_compiler_lock:
        context._internal_codegen = _codegen()
        try:
            dispatcher.compile(signature)
        finally:  # numba goes on as usual for whatever else the process compiles
            context._internal_codegen = usual
    code = dispatcher.overloads[signature]
    symbol = code.fndesc.llvm_func_name
    words = len(list(code.library.get_function(symbol).arguments))
    return symbol, str(code.signature.return_type), words, code.library.object_file()


class Callee(types.Dispatcher):  # type: ignore[misc]
    """Type of a function that compiled code calls."""

    def get_call_type(self, context: Any, arguments: Any, keywords: Any) -> Any:
        """Return the signature of a call; a constant is not worth a version of the function."""
        return super().get_call_type(context, map(types.unliteral, arguments), keywords)


register_model(Callee)(models.OpaqueModel)  # so that functions may be handed to functions


class _Library(JITCodeLibrary):
    """Code that other compiled code links, and that is not made ready to run."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, _name: str) -> int:
        """Give numba an address to note, which nothing calls."""
        self._ensure_finalized()
        return 0

    def object_file(self) -> bytes:
        """Optimise the code with all that it links, and make machine code of it."""
        super()._optimize_final_module()
        return bytes(self._codegen._tm.emit_object(self._final_module))


class _Codegen(JITCPUCodegen):
    """Numba's code generator, with libraries that are not made ready to run."""

    _library_class = _Library

    def set_env(self, _name: str, _environment: Any) -> None:
        """Leave out what only a function that may raise exceptions looks at."""


@cache
def _codegen() -> _Codegen:
    return _Codegen("cluster_sim")
