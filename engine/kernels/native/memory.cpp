// Memory in pages of 2 MiB, where the system has them: KV is read in short runs from all over,
// and with small pages finding each run costs as much as reading it.
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

// A wish, before the memory is first written; what it is refused for is not worth an error.
extern "C" void pd_large_pages(char* memory, int64_t bytes) {
#ifdef __linux__
    constexpr uintptr_t PAGE = 1 << 21;
    uintptr_t from = ((uintptr_t)memory + PAGE - 1) / PAGE * PAGE;
    uintptr_t to = ((uintptr_t)memory + bytes) / PAGE * PAGE;
    if (to > from) madvise((void*)from, to - from, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}
