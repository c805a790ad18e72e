"""What operators do is told in one line each, without anything secret."""

import pytest

from proxy.admin.audit import audit_line


def test_who_from_where_what_and_what_came_of_it() -> None:
    line = audit_line("ops", "10.0.0.9", "POST /instances/add", 200, b'{"message": "Added."}')
    assert line == (
        "admin=ops from=10.0.0.9 call='POST /instances/add' status=200 said='Added.'"
    )


def test_a_refusal_says_why() -> None:
    line = audit_line("-", None, "DELETE /instances", 403, b'{"detail": "Forbidden."}')
    assert line == "admin=- from=- call='DELETE /instances' status=403 said='Forbidden.'"


@pytest.mark.parametrize("answer", [b"", b"{", b"[1]", b'{"message": 1}', b"\xff"])
def test_any_answer_will_do(answer: bytes) -> None:
    assert audit_line("-", None, "GET /workers", 200, answer).endswith("said=''")


def test_nobody_writes_lines_of_his_own() -> None:
    line = audit_line("-", None, "GET /instances/a\nb\x1b[2J" + "c" * 9999, 404, b"{}")
    assert "\n" not in line
    assert line.isprintable()
    assert len(line) < 400
