"""How a card says an adapter is used: a snippet that runs, and a server's command."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from toolkit.confidence.vllm_samples import vllm_rank
from toolkit.publishing.markdown import one_line
from toolkit.publishing.subject import Subject
from toolkit.questions.prompts import answer_texts, plain_prompt, question_text
from toolkit.questions.question import MultipleChoice

EXAMPLE = MultipleChoice("example", "What is the capital of France?", ("Lyon", "Paris", "Nice", "Lille"), 1)
"""The question that a snippet asks."""

ALPHA_LOADED = 'alpha = load_file(cached_file(adapter, "calibration.safetensors"), device=str(model.device))'
ALPHA_APPLIED = 'logits = alpha["delta"] * logits + alpha["iota"]'
"""The two lines that apply α."""

_SCORES = {
    "sum": "log_probs.sum()",
    "token": "log_probs.mean()",
    "byte": "log_probs.sum() / len(option.encode())",
}


def snippet(subject: Subject) -> str:
    """Returns Python code that loads base and adapter and prints the confidence in each option of a question.

    The confidence is that of the report: the same prompt, tokens, Δ and ι, and score.
    """
    prompt = subject.report["prompt"]
    chat = prompt["style"] == "chat"
    lines = [
        "from os.path import commonprefix",
        "",
        "import torch",
        "from peft import PeftModel",
        *(["from safetensors.torch import load_file"] if subject.adjusted else []),
        f"from transformers import {_imports(subject)}",
        *(["from transformers.utils import cached_file"] if subject.adjusted else []),
        "",
        f"adapter = {json.dumps(subject.name)}  # this folder, or its id on the Hub",
        f"base = AutoModelForCausalLM.from_pretrained({_base(subject)})",
        "model = PeftModel.from_pretrained(base, adapter).eval()",
        "tokenizer = AutoTokenizer.from_pretrained(adapter)",
        *([ALPHA_LOADED] if subject.adjusted else []),
        "",
        *_question(prompt["form"], chat),
        f"texts = [prompt, *(prompt + {json.dumps('' if chat else ' ')} + option for option in options)]",
        f'ids = tokenizer(texts, add_special_tokens={not chat})["input_ids"]',
        "shared = len(commonprefix(ids))",
        "scores = []",
        "for option, row in zip(options, ids[1:]):",
        "    tokens = torch.tensor(row, device=model.device)",
        "    with torch.no_grad():",
        "        logits = model(tokens[None]).logits[0, shared - 1 : -1].float()",
        *([f"        {ALPHA_APPLIED}"] if subject.adjusted else []),
        "    log_probs = logits.log_softmax(-1).gather(1, tokens[shared:, None])",
        f"    scores.append({_SCORES[prompt['score']]})",
        "for option, confidence in zip(options, torch.stack(scores).softmax(0).tolist()):",
        '    print(f"{option}: {confidence:.4f}")',
    ]
    return "\n".join(lines)


def server_command(subject: Subject) -> str:
    """Returns the command with which vLLM serves base and adapter."""
    revision = [] if subject.commit is None else ["--revision", subject.commit]
    name, base = one_line(subject.name), one_line(subject.base)
    short = name.rpartition("/")[2]
    words = [
        "vllm",
        "serve",
        base,
        *revision,
        "--enable-lora",
        "--max-lora-rank",
        str(vllm_rank(subject.rank)),
    ]
    return shlex.join([*words, "--lora-modules", f"{short}={name}"])


def _question(form: str, chat: bool) -> list[str]:
    """Returns the lines that define `prompt` and `options`."""
    known: Any = form
    options = f"options = {json.dumps(answer_texts(EXAMPLE, known))}"
    if not chat:
        return [f"prompt = {json.dumps(plain_prompt(EXAMPLE, known))}", options]
    turn = json.dumps([{"role": "user", "content": question_text(EXAMPLE, known)}])
    return [
        f"turns = {turn}",
        "prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)",
        options,
    ]


def _imports(subject: Subject) -> str:
    classes = "AutoModelForCausalLM, AutoTokenizer"
    return f"{classes}, BitsAndBytesConfig" if is_nf4(subject.report["base"]) else classes


def _base(subject: Subject) -> str:
    """Returns the arguments that load the base as the figures had it: commit, dtype and 4 bits."""
    base = subject.report["base"]
    arguments = [json.dumps(subject.base)]
    if subject.commit is not None:
        arguments.append(f'revision="{subject.commit}"')
    if not is_nf4(base):
        return ", ".join([*arguments, f"dtype={json.dumps(base['dtype'])}"])
    found = base["quantization"]
    keys = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": bool(found["double_quantization"]),
        "bnb_4bit_compute_dtype": str(found["compute_dtype"]),
    }
    inner = "".join(f"        {key}={value!r},\n" for key, value in keys.items())
    arguments.append(f"quantization_config=BitsAndBytesConfig(\n{inner}    )")
    arguments.append(f"dtype={str(found['compute_dtype'])!r}")
    return "\n    " + ",\n    ".join(arguments) + ",\n"


def is_nf4(base: Mapping[str, Any]) -> bool:
    """Says whether the base's figures are those of 4-bit weights."""
    return (base.get("quantization") or {}).get("method") == "nf4"
