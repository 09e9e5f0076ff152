"""Each room keeps within its budget of lines."""

from tests import size


def test_no_room_is_beyond_its_budget(capsys):
    assert size.main() == 0, capsys.readouterr().out
    assert set(size.budgets()) == set(size.lines_by_room())


def test_a_room_beyond_its_budget_fails(monkeypatch, capsys):
    least = dict.fromkeys(size.budgets(), 1)
    monkeypatch.setattr(size, "budgets", lambda: least)
    assert size.main() == 1
    assert "too large" in capsys.readouterr().out
