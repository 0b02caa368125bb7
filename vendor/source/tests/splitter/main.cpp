// Compares the matcher of unicode-matcher.h with std::regex, for every expression in llama-vocab.cpp and for random
// expressions.
//
// This program compiles unicode.cpp with `compared` instead of the matcher. The expressions and texts are therefore
// those of the tokenizer.
//
// Arguments: seed, number of random texts, number of random expressions.

#include "unicode-matcher.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <regex>
#include <set>

#include "llama-vocab.h"

static bool     is_compared = true; // false if the text is too long for std::regex
static uint64_t n_compared  = 0;
static uint64_t n_different = 0;
static uint64_t n_given_up  = 0;
static double   most_steps  = 0; // for each character

template <typename CharT>
static std::vector<size_t> split_by_std(const std::basic_regex<CharT> & regex, const CharT * text, size_t size) {
    std::vector<size_t> lengths;
    size_t done = 0;
    const std::regex_iterator<const CharT *> end;
    for (std::regex_iterator<const CharT *> it(text, text + size, regex); it != end; ++it) {
        const size_t first = it->position();
        if (first > done) {
            lengths.push_back(first - done);
        }
        lengths.push_back(it->length());
        done = first + it->length();
    }
    if (done < size) {
        lengths.push_back(size - done);
    }
    return lengths;
}

template <typename CharT>
struct compared {
    using string = std::basic_string<CharT>;

    explicit compared(const string & expr)
        : expr(expr), regex(expr, std::regex_constants::optimize | std::regex_constants::nosubs), ours(expr) {}

    struct session {
        explicit session(const compared & c) : c(c), matcher(c.ours) {}

        void split(const CharT * text, size_t size, std::vector<size_t> & lengths) {
            std::vector<size_t> ours;
            matcher.split(text, size, ours);
            most_steps = std::max(most_steps, (double) matcher.n_steps() / (size + 64));
            if (is_compared) {
                ++n_compared;
                const auto theirs = split_by_std(c.regex, text, size);
                if (ours != theirs && n_different++ < 10) {
                    report(text, size, ours, theirs);
                }
            }
            lengths.insert(lengths.end(), ours.begin(), ours.end());
        }

        void report(const CharT * text, size_t size, const std::vector<size_t> & ours, const std::vector<size_t> & theirs) {
            printf("'%s' splits", std::string(c.expr.begin(), c.expr.end()).c_str());
            for (size_t i = 0; i < size; ++i) {
                printf(" %x", (unsigned) text[i]);
            }
            for (const auto * lengths : { &ours, &theirs }) {
                printf(lengths == &ours ? "\n  matcher:   " : "\n  std::regex:");
                for (const size_t length : *lengths) {
                    printf(" %zu", length);
                }
            }
            printf("\n");
        }

        const compared & c;
        typename unicode_matcher<CharT>::session matcher;
    };

    const string expr;
    const std::basic_regex<CharT> regex;
    const unicode_matcher<CharT> ours;
};

#define unicode_matcher compared
#include "unicode.cpp"
#undef unicode_matcher

using random_bits = std::mt19937_64;

// Expressions of a pre-tokenizer, from the source of llama-vocab.cpp.
static std::vector<std::string> expressions(int type) {
    std::vector<std::string> regex_exprs;
    bool byte_encode = true;
    switch (type) {
#include "pre_types.inc"
    }
    (void) byte_encode;
    return regex_exprs;
}

static const std::vector<std::vector<std::string>> kinds = {
    { "a", "b", "z", "m", "s", "t" },
    { "A", "B", "Z", "S", "T", "I", "M", "G" },
    { "0", "1", "2", "7", "9" },
    { " ", " ", "\t" },
    { "\n", "\r", "\n" },
    { "'s", "'t", "'RE", "'ll", "'", "'Ve" },
    { "!", ".", ",", "-", "(", ")", "[", "]", "{", "}", "|", "~", "\\", "/", "$", "+", "<", "=", ">", "^", "`", "_", "#",
      "\"", "@", ":", ";", "?", "&", "*", "%" },
    { u8"é", u8"ß", u8"ж", u8"Ж", u8"ǆ", u8"ª" },
    { u8"\u0301", u8"\u0308", u8"\u093e" },
    { u8"中", u8"文", u8"一", u8"龥", u8"あ", u8"ア", u8"가", u8"힣", u8"ㄅ", u8"ก" },
    { u8"😀", u8"👍", u8"\u200d", u8"\ufe0f" },
    { u8"\u00a0", u8"\u3000", u8"\u2003", u8"\u0085" },
    { u8"٣", u8"Ⅷ", u8"½" },
    { u8"。", u8"，", u8"…", u8"“", u8"！", u8"～" },
    { "\x01", "\x7f", u8"\ufffd", u8"\U0010ffff", u8"\ue000" },
    { u8"€", u8"∑", u8"©" },
    { "<sentinel:12>", "IMGIMGABCZ", "    ", "  ", "1234567" },
};

static std::string random_text(random_bits & bits) {
    std::string text;
    const size_t length = 1 + bits() % 40;
    const bool   is_mixed = bits() % 3 == 0;
    const auto & one      = kinds[bits() % kinds.size()];
    const auto & other    = kinds[bits() % kinds.size()];
    for (size_t i = 0; i < length; ++i) {
        const auto & kind = is_mixed ? kinds[bits() % kinds.size()] : (bits() % 4 ? one : other);
        const auto & part = kind[bits() % kind.size()];
        for (size_t n = bits() % 12 ? 1 : bits() % 20; n > 0; --n) {
            text += part;
        }
    }
    return text;
}

// Random expression over a few letters, with all operators of the matcher. If `is_filled`, it cannot match the empty
// text.
static std::string random_expression(random_bits & bits, int depth, bool is_filled) {
    static const std::vector<std::string> sets = { "a", "b", "[ab]", "[^a]", "\\s", "\\S", "\\d", "[a-c]", "[^\\sb]", "1" };
    static const std::vector<std::string> quantifiers = { "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}" };
    std::string result;
    const size_t terms = 1 + bits() % 3;
    for (size_t i = 0; i < terms; ++i) {
        const bool  is_first   = i == 0 && is_filled;
        const bool  is_grouped = depth > 0 && bits() % 3 == 0;
        const auto  quantifier = quantifiers[bits() % (is_first ? 4 : quantifiers.size())];
        const bool  is_one     = is_first && quantifier == "*";
        const auto  repeated   = is_one ? std::string("+") : quantifier;
        if (!is_first && depth > 0 && bits() % 6 == 0) {
            result += (bits() % 2 ? "(?=" : "(?!") + random_expression(bits, depth - 1, true) + ")";
        } else if (is_grouped) {
            result += (bits() % 2 ? "(" : "(?:") + random_expression(bits, depth - 1, true);
            if (bits() % 2) {
                result += "|" + random_expression(bits, depth - 1, true);
            }
            result += ")" + repeated;
        } else {
            result += sets[bits() % sets.size()] + repeated;
        }
    }
    if (!is_filled && bits() % 8 == 0) {
        result += "$";
    }
    return result;
}

template <typename CharT>
static void compare_random(random_bits & bits, const std::string & expr) {
    const std::basic_string<CharT> wide(expr.begin(), expr.end());
    const compared<CharT> both(wide);
    typename compared<CharT>::session session(both);
    for (int i = 0; i < 8; ++i) {
        std::basic_string<CharT> text;
        for (size_t n = bits() % 12; n > 0; --n) {
            text += (CharT) "aabbc1 \n"[bits() % 8];
        }
        std::vector<size_t> lengths;
        try {
            session.split(text.data(), text.size(), lengths);
        } catch (const std::runtime_error &) {
            ++n_given_up; // nested groups can take an exponential number of steps
        }
    }
}

// Returns the number of unsupported expressions that the matcher accepts.
static int unsupported() {
    int taken = 0;
    for (const char * expr : { "a+?", "a++", "a**", "(a*)*", "(?:a?)+", "\\b", "\\1", "\\p", "^a", "a.", "a{2", "a{3,1}", "a{2,}",
             "{", "*", "[", "[a", "[]a]", "[b-a]", "[\\s-a]", "[[:alpha:]]", "(", "(a", "a)", "(?<x>a)", "(?=a*)", "a||b", "()", "\\" }) {
        try {
            unicode_matcher<char> matcher(expr);
            printf("taken: %s\n", expr);
            ++taken;
        } catch (const std::runtime_error &) {
        }
    }
    return taken;
}

int main(int argc, char ** argv) {
    random_bits bits(argc > 1 ? strtoull(argv[1], nullptr, 10) : 1);
    const int n_texts       = argc > 2 ? atoi(argv[2]) : 1000;
    const int n_expressions = argc > 3 ? atoi(argv[3]) : 1000;

    std::set<std::vector<std::string>> lists;
    std::set<std::vector<std::string>> all;
    for (int type = 0; type < 1000; ++type) {
        lists.insert(expressions(type));
    }
    for (const auto & list : lists) {
        all.insert(list);
        for (const auto & expr : list) {
            all.insert({ expr });
        }
    }
    for (int i = 0; i < n_texts; ++i) {
        const std::string text = random_text(bits);
        for (const auto & list : all) {
            unicode_regex_split(text, list);
        }
    }
    for (int i = 0; i < n_expressions; ++i) {
        const std::string expr = random_expression(bits, 2, bits() % 2);
        compare_random<char>(bits, expr);
        compare_random<wchar_t>(bits, expr);
    }
    const int taken = unsupported();
    // Random expressions may take quadratic time, but expressions of the pre-tokenizers may not.
    most_steps  = 0;
    is_compared = false;
    for (const auto & kind : kinds) {
        for (const std::string end : { "", "a", "\n", "!" }) {
            std::string text;
            while (text.size() < 50000) {
                text += kind[bits() % kind.size()];
            }
            for (const auto & list : all) {
                unicode_regex_split(text + end, list);
            }
        }
    }
    printf("%zu lists, %llu comparisons, %llu differences, %llu given up, %d wrongly taken, at most %.0f steps for each "
           "character of a long text\n", lists.size(), (unsigned long long) n_compared, (unsigned long long) n_different,
           (unsigned long long) n_given_up, taken, most_steps);
    return n_different > 0 || n_given_up > (uint64_t) n_expressions / 100 || taken > 0 || most_steps > 100;
}
