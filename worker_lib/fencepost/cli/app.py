"""Loading the user's worker by the name `module:variable`.

Whatever is wrong with the module is told in one sentence: which module, and the reason.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from fencepost.worker.failures import AppUnusable
from fencepost.worker.worker import Worker


def load_worker(app: str) -> Worker:
    """The worker that `app` names, found as Python finds modules, the working directory first.

    Raises `AppUnusable`.
    """
    module_name, colon, variable = app.partition(":")
    if not colon or not module_name or not variable:
        raise AppUnusable(f"{app!r} is no worker: write module:variable, for example feeds:worker")
    if "/" in module_name or module_name.startswith("."):
        raise AppUnusable(f"{app!r} is a path{_hint(module_name, variable)}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found = _imported(module_name, variable)
    for part in variable.split("."):
        if not hasattr(found, part):
            raise AppUnusable(f"the module {module_name} has no {variable}{_workers_of(found)}")
        found = getattr(found, part)
    if not isinstance(found, Worker):
        raise AppUnusable(f"{app} is {_a(type(found).__name__)}, not a fencepost Worker")
    return found


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _imported(name: str, variable: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            missing = f"there is no module {error.name} in {os.getcwd()} or on the Python path"
            raise AppUnusable(missing + _hint(name, variable)) from None
        raise AppUnusable(f"the module {name} needs {error.name}, which is not installed") from None
    except AppUnusable as error:
        raise AppUnusable(f"the module {name} cannot be used: {error}") from None
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        raise AppUnusable(f"the module {name} has an error in {where}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        where = _where(error)
        raise AppUnusable(
            f"the module {name} cannot be imported: {type(error).__name__}: {error}{where}"
        ) from None


def _hint(name: str, variable: str) -> str:
    """Who writes a file's name means its module."""
    if not name.endswith(".py") and "/" not in name:
        return ""
    module = name.removesuffix(".py").strip("./").replace("/", ".")
    return f": a module is named with dots and without .py, write {module}:{variable}"


def _where(error: BaseException) -> str:
    """The line of the user's code that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _workers_of(module: object) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Worker)]
    return f"; it has the worker {', '.join(names)}" if names else ""
