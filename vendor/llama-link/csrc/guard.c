// CPU guard: ends a program that was built for a newer CPU with a message instead of SIGILL.
//
// The file is compiled for any CPU of the architecture, regardless of the flags for other code. It is freestanding,
// because it must not call code that could contain a newer instruction. The guard runs from .preinit_array, before the
// constructors of every shared library and of the program itself (ggml's C++ statics, libomp). The guard only uses
// information from the CPU: CPUID and XCR0 on x86-64, and the kernel's copy of this information (HWCAP) on aarch64.

#include "guard_required.h"  // generated: ANNEAL_GUARD_FEATURES, ANNEAL_GUARD_COUNT, ANNEAL_GUARD_USE

#if defined(__x86_64__)

#include <cpuid.h>

enum { WRITE = 1, EXIT_GROUP = 231 };
enum reg { EAX, EBX, ECX, EDX };

// Bits of XCR0 (Intel SDM volume 1, 13.3): registers that the operating system saves.
enum state { NONE = 0, YMM = 0x6, ZMM = 0xe6, TILE = 0x60000 };

struct feature {
    const char * name;
    unsigned leaf, subleaf;
    enum reg reg;
    unsigned bit;
    enum state state;
};

#elif defined(__aarch64__) && defined(__linux__)

enum { WRITE = 64, EXIT_GROUP = 94 };

// Function of libc that reads the kernel's auxiliary vector. It contains no instruction newer than libc itself.
extern unsigned long getauxval(unsigned long type);

// Types of the auxiliary vector (Linux, include/uapi/linux/auxvec.h and arch/arm64/include/uapi/asm/hwcap.h).
enum { AT_HWCAP = 16, AT_HWCAP2 = 26, HWCAP_CPUID = 1 << 11 };

struct feature {
    const char * name;
    unsigned long word;
    unsigned bit;
};

#else
#define ANNEAL_GUARD_NONE
#endif

#ifndef ANNEAL_GUARD_NONE

// One additional row, so that an empty list is still a valid array.
static const struct feature required[ANNEAL_GUARD_COUNT + 1] = { ANNEAL_GUARD_FEATURES { .name = 0 } };

// write(2) and _exit(2) are called by number: libc is mapped, but a static libc may contain newer instructions.
static long system_call(long number, long a, long b, long c) {
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#endif
}

static void say(const char * text) {
    long length = 0;
    while (text[length] != 0) {
        // Prevents the compiler from calling strlen, which an ifunc may resolve to a version with newer instructions.
        __asm__ volatile("" ::: "memory");
        length++;
    }
    (void) system_call(WRITE, 2, (long) text, length);
}

#if defined(__x86_64__)

struct leaf {
    unsigned number, subleaf;
    unsigned regs[4];
};

// Returns the registers of a leaf. In a virtual machine, each CPUID takes tens of microseconds, because the hypervisor
// intercepts the instruction, so each leaf is read only once.
static const unsigned * read_leaf(unsigned number, unsigned subleaf) {
    static struct leaf known[8];
    static unsigned count;
    for (unsigned i = 0; i < count; i++) {
        if (known[i].number == number && known[i].subleaf == subleaf) {
            return known[i].regs;
        }
    }
    // A full table loses its last leaf.
    struct leaf * leaf = &known[count < 8 ? count++ : 7];
    leaf->number = number;
    leaf->subleaf = subleaf;
    __cpuid_count(number, subleaf, leaf->regs[0], leaf->regs[1], leaf->regs[2], leaf->regs[3]);
    return leaf->regs;
}

static unsigned max_leaf(unsigned base) {
    return read_leaf(base, 0)[EAX];
}

// Returns true if the CPU itself reports the feature.
static int cpu_has(const struct feature * feature) {
    if (max_leaf(feature->leaf & 0x80000000u) < feature->leaf) {
        return 0;
    }
    if (feature->leaf == 7 && feature->subleaf > read_leaf(7, 0)[EAX]) {
        return 0;
    }
    return (read_leaf(feature->leaf, feature->subleaf)[feature->reg] >> feature->bit) & 1;
}

// Returns XCR0, or 0 if the operating system has not enabled XSAVE.
static unsigned long enabled_state(void) {
    if (((read_leaf(1, 0)[ECX] >> 27) & 1) == 0) {
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

// Returns true if the operating system saves the registers that the feature uses.
static int is_enabled(const struct feature * feature) {
    return (feature->state & ~enabled_state()) == 0;
}

#else

// Returns true if the kernel reports the feature. The kernel reads the feature from the CPU.
static int cpu_has(const struct feature * feature) {
    return (getauxval(feature->word) >> feature->bit) & 1;
}

// The kernel only reports features that it has enabled.
static int is_enabled(const struct feature * feature) {
    (void) feature;
    return 1;
}

static void say_hexadecimal(unsigned long number) {
    char text[19] = "0x";
    unsigned digits = 1;
    while (digits < 16 && number >> (4 * digits) != 0) {
        digits++;
    }
    for (unsigned i = 0; i < digits; i++) {
        text[2 + i] = "0123456789abcdef"[(number >> (4 * (digits - 1 - i))) & 15];
    }
    text[2 + digits] = 0;
    say(text);
}

// The name is the same as in /proc/cpuinfo. If this feature is set, the kernel lets programs read the register.
static void say_cpu_name(void) {
    unsigned long midr;
    if ((getauxval(AT_HWCAP) & HWCAP_CPUID) == 0) {
        say("unknown");
        return;
    }
    __asm__ volatile("mrs %0, midr_el1" : "=r"(midr));
    say("implementer ");
    say_hexadecimal((midr >> 24) & 0xff);
    say(", part ");
    say_hexadecimal((midr >> 4) & 0xfff);
}

#endif

static void refuse(void) {
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
        if (cpu_has(&required[i]) && !is_enabled(&required[i])) {
            say(" ");
            say(required[i].name);
            say(" (not enabled by the operating system)");
        }
    }
    say("\n  use:      " ANNEAL_GUARD_USE "\n");
    for (;;) {
        (void) system_call(EXIT_GROUP, 69 /* EX_UNAVAILABLE */, 0, 0);
    }
}

static void check(void) {
    static int checked;
    if (checked) {
        return;
    }
    checked = 1;
    for (unsigned i = 0; i < ANNEAL_GUARD_COUNT; i++) {
        if (!cpu_has(&required[i]) || !is_enabled(&required[i])) {
            refuse();
        }
    }
}

// glibc runs .preinit_array before anything else. musl only supports constructors, so the guard is also a
// constructor.
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
