"""Run by vLLM's own interpreter: generate greedily with a draft (or without), print tokens and counters as JSON."""

import json
import sys


def main() -> None:
    from vllm import LLM, SamplingParams

    job = json.loads(sys.stdin.read())
    speculative = None
    if job["draft"]:
        speculative = {"method": "dflash", "model": job["draft"], "num_speculative_tokens": job["slots"]}
    llm = LLM(
        job["target"], dtype="float32", max_model_len=512, max_num_seqs=4, enforce_eager=True, skip_tokenizer_init=True,
        enable_prefix_caching=False, disable_log_stats=False, speculative_config=speculative,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=job["new_tokens"], ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], sampling)
    counters = {
        m.name: m.values if hasattr(m, "values") else m.value for m in llm.get_metrics() if "spec_decode" in m.name
    }
    print("ANSWER " + json.dumps({"tokens": [list(o.outputs[0].token_ids) for o in outputs], "counters": counters}))


if __name__ == "__main__":
    main()
