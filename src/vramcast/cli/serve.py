"""`vramcast serve`: the page on this machine, with the engine behind it."""

from __future__ import annotations

import argparse
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from vramcast.errors import InputError

PORT = 8617


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="FOLDER",
        help="folders whose models the page may name; nothing else of the disk can be read",
    )
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"port (default {PORT})"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="NAME",
        help="address to listen on (default 127.0.0.1)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="processes that answer (default: one per core, at most 8)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        metavar="N",
        help="the longest an answer may take (default 60)",
    )


def run(args: argparse.Namespace) -> int:
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InputError(f"serve needs {' and '.join(missing)}: pip install 'vramcast[web]'")
    if not 0 < args.port < 65536:
        raise InputError(f"--port must be between 1 and 65535, not {args.port}")
    if not args.seconds > 0:
        raise InputError(f"--seconds must be above 0, not {args.seconds:g}")
    import uvicorn

    from vramcast.web.given import Place
    from vramcast.web.pool import Pool
    from vramcast.web.server import Address, make_app

    roots = tuple(_folder(path) for path in args.folders)
    count = max(1, args.processes or min(8, os.cpu_count() or 1))
    with tempfile.TemporaryDirectory(prefix="vramcast-") as folder:
        place = Place(folder=Path(folder).resolve(), roots=roots)
        pool = Pool(place, count=count, seconds=args.seconds)
        app = make_app(pool, Address(host=args.host, port=args.port))
        print(f"vramcast: http://{args.host}:{args.port}/   (Ctrl+C ends it)", flush=True)
        uvicorn.run(app, host=args.host, port=args.port, log_level="warning", server_header=False)
    return 0


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise InputError(f"{path}: not a folder")
    return path.resolve()
