"""Lets lm-evaluation-harness score a task with a server, and prints one JSON object.

Arguments: the address of the server, and the name of its model. `cargo xtask test --clients` runs this script with the
packages of harness.txt. The likelihoods must equal the server's log-probabilities of the same tokens.
"""

import json
import os
import sys
import tempfile
import urllib.request
from importlib.metadata import version
from pathlib import Path

from perform_tasks import perform

ADDRESS, MODEL = sys.argv[1], sys.argv[2]
FOLDER = tempfile.TemporaryDirectory()
# The task and its data are local, so nothing may be downloaded.
os.environ |= {"HF_HOME": FOLDER.name, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}

QUESTIONS = [
    {"q": "Steel is harder than", "choices": [" iron", " stone and wood"], "answer": 0},
    {"q": "The smith strikes the", "choices": [" cold water", " iron"], "answer": 1},
    {"q": "A blade needs", "choices": [" an edge", " a song"], "answer": 0},
]

TASK = """
task: metals
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
"""


def post(path, body):
    request = urllib.request.Request(f"{ADDRESS}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def likelihood(question, choice):
    """Returns the log-probability of `choice` after `question`, from the server's own answer."""
    count = len(post("/tokenize", {"content": question})["tokens"])
    body = {"prompt": question + choice, "echo": True, "max_tokens": 0, "logprobs": 1}
    values = post("/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"]
    return sum(values[count:])


def score():
    import lm_eval
    from lm_eval.tasks import TaskManager

    folder = Path(FOLDER.name)
    data = folder / "metals.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    (folder / "metals.yaml").write_text(TASK.format(data=data))
    arguments = {"model": MODEL, "base_url": f"{ADDRESS}/v1/completions", "tokenizer_backend": "remote"}
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args=arguments,
        tasks=["metals"],
        batch_size=4,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
    )
    samples = results["samples"]["metals"]
    assert len(samples) == len(QUESTIONS), samples
    for sample in samples:
        question = sample["doc"]
        found = [float(answer[0]) for answer in sample["filtered_resps"]]
        expected = [likelihood(question["q"], choice) for choice in question["choices"]]
        assert all(abs(one - other) < 1e-3 for one, other in zip(found, expected, strict=True)), (found, expected)


TASKS = [
    ("lm_eval", "likelihoods for a multiple-choice task", score),
]

perform(TASKS, version)
