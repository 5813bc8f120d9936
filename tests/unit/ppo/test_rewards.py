"""Each kind of reward scores texts, and says what is missing in words that help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import LlamaConfig, LlamaForSequenceClassification

from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.params.ppo import RewardSourceParams
from lockstep.training.ppo.rewards import Reward, build_judge, build_reward
from lockstep.training.ppo.rewards.learned import LearnedReward
from lockstep.training.ppo.rewards.lexicon import LexiconReward
from ppo_cases import tiny_backbone, tiny_tokenizer

GOOD = ["a wonderful film with great acting", "great fun and a wonderful story", "wonderful great lovely film"]
BAD = ["a terrible film with awful acting", "awful and a terrible story", "terrible awful boring film"]


def reviews(folder: Path, repeats: int = 10) -> Path:
    rows = [
        {"id": f"{label}{number}", "text": f"{text} {number}", "label": label, "source": "test"}
        for number in range(repeats)
        for label, texts in ((1, GOOD), (0, BAD))
        for text in texts
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def build(project: Path, **source: object) -> Reward:
    return build_reward(
        RewardSourceParams.model_validate(source),
        project=project,
        reviews=project / "reviews",
        reward_weights=None,
        backbone=tiny_backbone(),
        tokenizer=tiny_tokenizer(),
    )


def test_the_learned_reward_ranks_unseen_texts_and_stays_between_minus_one_and_one(tmp_path: Path) -> None:
    reviews(tmp_path / "reviews")
    reward = build(tmp_path, kind="learned")
    scores = reward.score(["such a great and wonderful evening", "an awful and terrible evening"])
    assert 1 >= scores[0] > 0.2 > -0.2 > scores[1] >= -1
    again = build(tmp_path, kind="learned")
    assert again.score(GOOD + BAD) == reward.score(GOOD + BAD)


def test_a_score_does_not_depend_on_the_other_texts(tmp_path: Path) -> None:
    reviews(tmp_path / "reviews")
    reward = build(tmp_path, kind="learned")
    assert reward.score(GOOD + BAD)[2] == reward.score([GOOD[2]])[0]


def test_the_learned_reward_refuses_too_few_reviews_and_one_kind_only(tmp_path: Path) -> None:
    reviews(tmp_path / "reviews", repeats=1)
    with pytest.raises(UsageError, match="at least 20"):
        build(tmp_path, kind="learned")
    with pytest.raises(UsageError, match="two labels"):
        LearnedReward(["a"] * 30, [1] * 30)


def test_the_lexicon_knows_praise_from_blame() -> None:
    scores = LexiconReward().score([GOOD[0], "the table is brown", BAD[0]])
    assert scores[0] > 0.5 > scores[1] > -0.5 > scores[2]
    assert scores[1] == 0.0


def test_the_judge_is_never_the_reward(tmp_path: Path) -> None:
    folder = reviews(tmp_path / "reviews")
    assert isinstance(build_judge(RewardSourceParams(kind="learned"), folder), LexiconReward)
    assert isinstance(build_judge(RewardSourceParams(kind="lexicon"), folder), LearnedReward)


class TestFunction:
    """path.py:name, with its mistakes named."""

    def source(self, project: Path, code: str) -> Reward:
        (project / "mine.py").write_text(code)
        return build(project, kind="function", file="mine.py:score")

    def test_it_scores(self, tmp_path: Path) -> None:
        reward = self.source(tmp_path, "def score(texts):\n    return [len(text) for text in texts]\n")
        assert reward.score(["ab", "abc"]) == [2.0, 3.0]

    def test_too_few_scores_and_bad_numbers_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(LockstepError, match="1 scores for 2 texts"):
            self.source(tmp_path, "def score(texts):\n    return [1.0]\n").score(["a", "b"])
        with pytest.raises(LockstepError, match="nan for the text 'b'"):
            self.source(
                tmp_path, "def score(texts):\n    return [0.0 if text == 'a' else float('nan') for text in texts]\n"
            ).score(["a", "b"])

    def test_a_missing_file_or_function_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"absent\.py is not in"):
            build(tmp_path, kind="function", file="absent.py:score")
        with pytest.raises(UsageError, match="no function 'score'.*Did you mean 'scores'"):
            self.source(tmp_path, "def scores(texts):\n    return []\n")


class TestClassifier:
    """A classifier of another family, with its own tokenizer."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=256,
            num_labels=3, pad_token_id=0, initializer_range=0.5,
        )  # fmt: skip
        LlamaForSequenceClassification(config).save_pretrained(tmp_path / "judge")
        tokenizer = tiny_tokenizer()
        tokenizer.pad_token = "<unk>"
        tokenizer.save_pretrained(tmp_path / "judge")
        return tmp_path

    def test_the_score_is_the_log_odds_of_the_label_in_any_batch(self, folder: Path) -> None:
        texts = ["w5 w6 w7", "w9", "w10 w11 w12 w13", "w40 w41"]
        whole = build(folder, kind="classifier", path="judge", label=2).score(texts)
        split = build(folder, kind="classifier", path="judge", label=2, batch_size=1).score(texts)
        assert split == pytest.approx(whole, abs=1e-5)
        model = LlamaForSequenceClassification.from_pretrained(folder / "judge")
        with torch.no_grad():
            probabilities = model(torch.tensor([[5, 6, 7]])).logits.softmax(-1)[0]
        assert whole[0] == pytest.approx(float(torch.logit(probabilities[2])), abs=1e-4)

    def test_what_is_not_there_is_named(self, folder: Path) -> None:
        with pytest.raises(UsageError, match="labels 0 to 2, not 3"):
            build(folder, kind="classifier", path="judge", label=3)
        with pytest.raises(UsageError, match="no Hugging Face model"):
            build(folder, kind="classifier", path="nowhere")


def test_a_reward_model_without_its_stage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"reward\.enabled: true"):
        build(tmp_path, kind="model")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ({"kind": "function"}, "go together"),
        ({"kind": "learned", "file": "a.py:f"}, "go together"),
        ({"kind": "function", "file": "a.py"}, "a file and a function"),
        ({"kind": "classifier"}, "path: FOLDER"),
    ],
)
def test_half_a_source_is_refused(source: dict[str, str], hint: str) -> None:
    with pytest.raises(ValidationError, match=hint):
        RewardSourceParams.model_validate(source)
