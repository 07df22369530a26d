// What a loop that polls memory tells the processor between two looks, so that it spends less power, leaves
// the other hardware thread of the core more room and does not mispredict the end (Intel's PAUSE; on ARM ISB,
// which waits where YIELD does nothing).
#ifndef PTB_CORE_PAUSE_H
#define PTB_CORE_PAUSE_H

static inline void ptb_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

#endif
