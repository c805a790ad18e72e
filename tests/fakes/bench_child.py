"""Stands for bench.gpu.child: each row does what the job's `deeds` say of it.

"fine" is measured; "aborts" ends its process in the middle; "hangs" never answers; "loses" is
measured, and its process ends behind it. A job with `mute` ends before it has ceilings. Where
each process began and ended is noted in the file `log`.
"""

import json
import os
import select
import sys
from pathlib import Path
from typing import Any, TextIO

CEILINGS = {"bandwidth": 1e9, "bfloat16": 1e12, "float8": None}


def run(job: dict[str, Any], pipe: TextIO) -> None:
    def tell(news: dict[str, Any]) -> None:
        pipe.write(json.dumps(news) + "\n")
        pipe.flush()

    with Path(job["log"]).open("a") as log:
        log.write(f"{job['first']}-{job['end']}\n")
    if job.get("mute"):
        return
    if job["ceilings"] is None:
        tell({"ceilings": CEILINGS, "facts": {"device": "made up"}})
    for index in range(job["first"], job["end"]):
        deed = job["deeds"][index]
        tell({"begun": str(index)})
        if deed == "aborts":
            os.abort()
        if deed == "hangs":
            select.select([], [], [])
        tell({"measured": {"shape": "tiny", "name": f"row {index}", "setting": ""}})
        if deed == "loses":
            return


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[2]), "w") as opened:
        run(json.loads(sys.argv[1]), opened)
