"""Which requests are taken: their number, each client's share, and memory."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from captioner.serving.admission import Admission, FullError, Upload, client_key


def test_so_many_requests_are_taken_and_again_when_they_are_answered() -> None:
    async def run() -> None:
        admission = Admission(max_requests=2, max_held_bytes=100)
        with admission.request("a"), admission.request("b"):
            assert admission.full
            with pytest.raises(FullError), admission.request("c"):
                pass
            with pytest.raises(FullError), admission.upload("c"):
                pass
        with admission.request("c"), admission.upload("c"):
            assert (admission.requests, admission.in_progress) == (1, 1)
        assert (admission.requests, admission.in_progress) == (0, 0)

    asyncio.run(run())


def test_one_client_leaves_a_quarter_to_others() -> None:
    admission = Admission(max_requests=8, max_held_bytes=100)
    with admission.request("a"), admission.request("a"), admission.request("a"):
        with admission.request("a"), admission.request("a"), admission.request("a"):
            with pytest.raises(FullError), admission.request("a"):
                pass
            with admission.request("b"), admission.request("c"):
                assert admission.requests == 8
    with admission.request("a"):
        assert admission.requests == 1


def test_unfinished_uploads_are_no_requests() -> None:
    async def run() -> None:
        admission = Admission(max_requests=1, max_held_bytes=100)
        with admission.upload("a"), admission.upload("a"), admission.request("a"):
            assert (admission.requests, admission.in_progress) == (1, 2)

    asyncio.run(run())


def test_silent_uploads_make_room_and_active_ones_do_not() -> None:
    admission = Admission(max_requests=8, max_held_bytes=100)

    async def hold(upload: Upload, size: int) -> bool:
        with upload.scope:
            upload.add(size)
            await anyio.sleep_forever()
        return upload.dropped

    async def run() -> None:
        with (
            admission.upload("a") as old,
            admission.upload("b") as older,
            admission.upload("c") as new,
        ):
            holding = [asyncio.create_task(hold(upload, 40)) for upload in (old, older)]
            await asyncio.sleep(0.01)
            with pytest.raises(FullError):
                new.add(40)  # nobody has been silent for long
            new.size, old.last_progress = 0, old.last_progress - 5
            older.last_progress -= 10
            admission.hold(new, -40)
            new.add(40)
            assert await asyncio.wait_for(holding[1], 10), "the longest silent one goes"
            assert not holding[0].done(), "and no more of them than are in the way"
            old.complete = True
            with pytest.raises(FullError):
                new.add(40)
            holding[0].cancel()

    asyncio.run(run())


def test_memory_is_free_again_after_the_answer() -> None:
    async def run() -> None:
        admission = Admission(max_requests=8, max_held_bytes=100)
        for _ in range(3):
            with admission.upload("a") as upload:
                upload.add(35)
                upload.add(40)
                with pytest.raises(FullError):
                    upload.add(1)

    asyncio.run(run())


def test_a_client_that_fills_its_memory_leaves_a_quarter_to_others() -> None:
    async def run() -> None:
        admission = Admission(max_requests=8, max_held_bytes=100)
        with admission.upload("a") as one, admission.upload("a") as two:
            one.add(75)
            with pytest.raises(FullError):
                two.add(5)
            two.last_progress -= 5
            with admission.upload("b") as other:
                other.add(20)
                assert not one.dropped
                assert not two.dropped
        with admission.upload("a") as again, admission.upload("a") as more:
            again.add(75)
            again.last_progress -= 5
            more.add(5)  # a client's own silent upload makes room for it
            assert again.dropped

    asyncio.run(run())


def test_a_client_is_an_address_or_a_network_of_ipv6() -> None:
    assert client_key("192.0.2.1") != client_key("192.0.2.2")
    assert client_key("::ffff:192.0.2.1") == client_key("192.0.2.1")
    assert client_key("2001:db8:1:2::1") == client_key("2001:db8:1:2:ffff::2")
    assert client_key("2001:db8:1:2::1") != client_key("2001:db8:1:3::1")
    assert client_key("testclient") == "testclient"
