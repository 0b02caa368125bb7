// The CPU guard: stops a program that was built for a newer CPU with words instead of SIGILL.
//
// Compiled for plain x86-64 whatever the rest is compiled for, and freestanding: nothing here may call
// code that could hold a newer instruction. It runs from .preinit_array, before the constructors of every
// shared library and of the program itself (ggml's C++ statics, libomp), and reads CPUID and XCR0 only.

#include "guard_required.h"  // generated: ANNEAL_GUARD_FEATURES, ANNEAL_GUARD_COUNT, ANNEAL_GUARD_USE

#if defined(__x86_64__)

#include <cpuid.h>

enum reg { EAX, EBX, ECX, EDX };

// Bits of XCR0 (Intel SDM volume 1, 13.3): the registers that the operating system saves.
enum state { NONE = 0, YMM = 0x6, ZMM = 0xe6, TILE = 0x60000 };

struct feature {
    const char * name;
    unsigned leaf, subleaf;
    enum reg reg;
    unsigned bit;
    enum state state;
};

// One row more than there are features, so that an empty list is still an array.
static const struct feature required[ANNEAL_GUARD_COUNT + 1] = { ANNEAL_GUARD_FEATURES { 0, 0, 0, EAX, 0, NONE } };

// write(2) and _exit(2) by number: libc is mapped, but a static one need not be plain x86-64.
static long system_call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static void say(const char * text) {
    long length = 0;
    while (text[length] != 0) {
        // Keeps the compiler from calling strlen, which an ifunc may resolve to something newer.
        __asm__ volatile("" ::: "memory");
        length++;
    }
    (void) system_call(1 /* SYS_write */, 2, (long) text, length);
}

static unsigned max_leaf(unsigned base) {
    unsigned regs[4];
    __cpuid(base, regs[0], regs[1], regs[2], regs[3]);
    return regs[0];
}

// Whether the CPU itself reports the feature.
static int cpu_has(const struct feature * feature) {
    if (max_leaf(feature->leaf & 0x80000000u) < feature->leaf) {
        return 0;
    }
    unsigned regs[4];
    if (feature->leaf == 7 && feature->subleaf > 0) {
        __cpuid_count(feature->leaf, 0, regs[0], regs[1], regs[2], regs[3]);
        if (regs[0] < feature->subleaf) {
            return 0;
        }
    }
    __cpuid_count(feature->leaf, feature->subleaf, regs[0], regs[1], regs[2], regs[3]);
    return (regs[feature->reg] >> feature->bit) & 1;
}

// XCR0, or 0 where the operating system has not turned XSAVE on.
static unsigned long enabled_state(void) {
    unsigned regs[4];
    __cpuid(1, regs[0], regs[1], regs[2], regs[3]);
    if (((regs[ECX] >> 27) & 1) == 0) {
        return 0;
    }
    unsigned low, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" /* xgetbv */ : "=a"(low), "=d"(high) : "c"(0));
    return ((unsigned long) high << 32) | low;
}

static void say_cpu_name(void) {
    if (max_leaf(0x80000000u) < 0x80000004u) {
        say("unknown");
        return;
    }
    union {
        unsigned words[13];
        char text[52];
    } name;
    for (unsigned i = 0; i < 3; i++) {
        unsigned * part = name.words + 4 * i;
        __cpuid(0x80000002u + i, part[0], part[1], part[2], part[3]);
    }
    name.words[12] = 0;
    const char * start = name.text;
    while (*start == ' ') {
        start++;
    }
    say(start);
}

static void refuse(unsigned long state) {
    say("anneal: this build does not run on this CPU\n  CPU:      ");
    say_cpu_name();
    say("\n  missing: ");
    for (unsigned i = 0; i < ANNEAL_GUARD_COUNT; i++) {
        if (!cpu_has(&required[i])) {
            say(" ");
            say(required[i].name);
        }
    }
    for (unsigned i = 0; i < ANNEAL_GUARD_COUNT; i++) {
        if (cpu_has(&required[i]) && (required[i].state & ~state) != 0) {
            say(" ");
            say(required[i].name);
            say(" (not enabled by the operating system)");
        }
    }
    say("\n  use:      " ANNEAL_GUARD_USE "\n");
    for (;;) {
        (void) system_call(231 /* SYS_exit_group */, 69 /* EX_UNAVAILABLE */, 0, 0);
    }
}

static void check(void) {
    unsigned long state = enabled_state();
    for (unsigned i = 0; i < ANNEAL_GUARD_COUNT; i++) {
        if (!cpu_has(&required[i]) || (required[i].state & ~state) != 0) {
            refuse(state);
        }
    }
}

// glibc runs .preinit_array before anything else; musl knows only constructors, so there is one as well.
__attribute__((used, section(".preinit_array"))) static void (*const preinit)(void) = check;
__attribute__((used, constructor(101))) static void construct(void) {
    check();
}

const char * anneal_guard_required(unsigned index) {
    return index < ANNEAL_GUARD_COUNT ? required[index].name : (const char *) 0;
}

#else

const char * anneal_guard_required(unsigned index) {
    (void) index;
    return (const char *) 0;
}

#endif
