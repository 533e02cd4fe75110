"""How decisions ask for what they lack."""

from __future__ import annotations

from typing import Any

from spark_nats.jetstream.messages import (
    Answers,
    Decision,
    MessageAt,
    Question,
    Questions,
    decide_together,
    run_decision,
)

FIRST, SECOND, THIRD = (MessageAt("A", sequence) for sequence in (1, 2, 3))


class Asked(list[Questions]):
    """What was asked, in rounds; the answer is a question's sequence."""

    def __call__(self, questions: Questions) -> Answers:
        self.append(questions)
        return {each: each.sequence for each in questions if isinstance(each, MessageAt)}


def total(*rounds: list[Question[Any]]) -> Decision[int]:
    """Add up the answers to everything that is asked."""
    found = 0
    for each in rounds:
        answers = yield each
        found += sum(answers[question] for question in each)
    return found


def test_no_question_is_asked_twice_nor_one_whose_answer_is_known() -> None:
    asked = Asked()
    assert run_decision(total([FIRST], [], [FIRST, SECOND], [THIRD]), asked, {THIRD: 30}) == 1 + 1 + 2 + 30
    assert asked == [[FIRST], [SECOND]]


def test_what_is_asked_side_by_side_is_asked_at_once() -> None:
    asked = Asked()
    parts = {"none": total(), "one": total([FIRST]), "two": total([SECOND], [THIRD])}
    assert run_decision(decide_together(parts), asked) == {"none": 0, "one": 1, "two": 5}
    assert asked == [[FIRST, SECOND], [THIRD]]
