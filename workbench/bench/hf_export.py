"""A GGUF file's weights as a Hugging Face directory in float32, for peers that read nothing else.

Written once by transformers' own GGUF reader, so that no code of ours stands between the file and a
peer; kept under the user's cache folder by the file's content. No tokenizer is written: peers get token ids.
Run as a program (arguments: GGUF file, target folder), since transformers brings threads of its own.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from workbench.bench.report import ROOT
from workbench.errors import EngineError

CACHE: Final = Path.home() / ".cache" / "workbench-bench"


def exported(gguf: Path, cache: Path = CACHE) -> Path:
    """Return the folder with the float32 weights of `gguf`; writes it the first time (about 20 seconds).

    Raises:
        EngineError: it cannot be written; the cause stands on standard error.
    """
    target = cache / f"{gguf.stem}-float32-{_digest(gguf)}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as unfinished:  # renamed when whole: a half export is never found
        folder = Path(unfinished) / "model"
        command = [sys.executable, "-m", "workbench.bench.hf_export", str(gguf.resolve()), str(folder)]
        ended = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        if ended.returncode != 0:
            raise EngineError(f"exporting {gguf.name} to float32 ended with status {ended.returncode}: see above")
        folder.rename(target)
    return target


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _export(gguf: Path, folder: Path) -> None:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    read = transformers.AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
    )
    # A model that came from GGUF counts as quantized and refuses to be saved; an equal plain one does not.
    config = transformers.AutoConfig.for_model(**{**read.config.to_dict(), "quantization_config": None})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)


if __name__ == "__main__":
    _export(Path(sys.argv[1]), Path(sys.argv[2]))
