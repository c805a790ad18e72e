"""A pool of threads on a system that has none left."""

from concurrent.futures import ThreadPoolExecutor


class NoThreads(ThreadPoolExecutor):
    """No thread starts, until `over` says that the system has some again."""

    over = False

    def _adjust_thread_count(self) -> None:
        if not self.over:
            raise RuntimeError("can't start new thread")
        super()._adjust_thread_count()
