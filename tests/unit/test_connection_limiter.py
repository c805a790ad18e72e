"""Who has taken too long at a door: decisions, with a clock in the hand."""

from dataclasses import dataclass, field

from api.door.limiter import HOSTS_S, ConnectionFault, ConnectionLimiter, DoorLimits


@dataclass(eq=False)
class Client:
    idle: ConnectionFault | None = ConnectionFault.IDLE
    closing: bool = False
    left: int = 0
    unheard: float = 0.0
    ended: list[ConnectionFault] = field(default_factory=list)

    def unsent(self) -> int:
        return self.left

    def unacknowledged_s(self) -> float:
        return self.unheard

    def end(self, fault: ConnectionFault) -> None:
        self.ended.append(fault)


def limiter(**limits: float) -> ConnectionLimiter:
    return ConnectionLimiter(DoorLimits(head_s=10, body_s=60, write_s=30, **limits))  # type: ignore[arg-type]


def test_who_says_nothing_for_too_long_is_cut_once() -> None:
    door, early, late = limiter(), Client(), Client()
    door.add(early, 0.0)
    door.add(late, 5.0)
    door.sweep(9.9)
    assert not early.ended
    door.sweep(10.0)
    door.sweep(11.0)
    assert (early.ended, late.ended) == ([ConnectionFault.IDLE], [])


def test_who_is_being_answered_may_be_silent() -> None:
    door, client = limiter(), Client(idle=None)
    door.add(client, 0.0)
    door.sweep(100.0)
    assert not client.ended


def test_a_body_has_its_own_time() -> None:
    door, client = limiter(), Client()
    door.bodies[client] = 0.0
    door.sweep(59.0)
    assert not client.ended
    door.sweep(60.0)
    assert client.ended == [ConnectionFault.SLOW_BODY]


def test_who_takes_something_is_slow_and_who_takes_nothing_is_cut() -> None:
    door, slow, stuck = limiter(), Client(left=100_000), Client(left=100_000)
    for client in (slow, stuck):
        door.add(client, 0.0)
        door.stop_waiting(client)
        door.await_drain(client, 0.0)
    for now in range(0, 100, 10):
        slow.left -= 5000
        stuck.left -= 1
        door.sweep(float(now))
    assert not slow.ended
    assert stuck.ended[0] is ConnectionFault.SLOW_CLIENT


def test_who_closes_has_as_long_to_take_the_rest() -> None:
    door, client = limiter(), Client(closing=True, left=100)
    door.add(client, 0.0)
    door.stop_waiting(client)
    door.sweep(0.0)
    door.sweep(29.0)
    assert not client.ended
    door.sweep(30.0)
    assert client.ended == [ConnectionFault.SLOW_CLIENT]


def test_where_there_are_too_many_the_most_silent_goes() -> None:
    door = limiter(connections=2)
    busy, silent, new = Client(), Client(), Client()
    for number, client in enumerate((busy, silent)):
        door.add(client, float(number))
    door.stop_waiting(busy)
    door.add(new, 2.0)
    assert (busy.ended, silent.ended, new.ended) == ([], [ConnectionFault.CROWDED], [])


def test_one_goes_for_each_that_comes_although_none_has_left_yet() -> None:
    door, early = limiter(connections=2), [Client() for _ in range(2)]
    for client in early:
        door.add(client, 0.0)
    late = [Client() for _ in range(2)]
    for client in late:
        door.add(client, 1.0)
    assert [one.ended for one in early] == [[ConnectionFault.CROWDED]] * 2
    assert not any(one.ended for one in late)


def test_who_left_is_in_no_table() -> None:
    door, client = limiter(), Client()
    door.add(client, 0.0)
    door.bodies[client] = 0.0
    door.await_drain(client, 0.0)
    door.remove(client)
    tables = door.connections, door.heads, door.bodies, door.writes
    assert not any(tables)


def test_whose_host_is_gone_is_cut_whatever_there_is_to_say_or_hear() -> None:
    door, gone, there = limiter(gone_s=10.0), Client(idle=None), Client(idle=None)
    for client in (gone, there):
        door.add(client, 0.0)
    gone.unheard, there.unheard = 9.0, 1.0
    door.sweep(9.0)
    assert not gone.ended
    gone.unheard = 10.0
    door.sweep(9.0 + HOSTS_S / 2)
    assert not gone.ended  # nobody has looked again
    door.sweep(9.0 + HOSTS_S)
    assert (gone.ended, there.ended) == ([ConnectionFault.GONE], [])
