// Chain of llama.cpp's samplers that works on a row of logits. Impossible tokens (banned, or not in the mask) are
// removed before the chain runs, so that no sampler computes with them.
#include "sampler.hpp"

#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using Tokens = std::vector<llama_token_data>;

// Parameters of a chain: type and name. Rust's table PARAMETERS has the same names, with ranges and defaults.
#define CHAIN_NUMBERS(X)                                                                                               \
    X(float, temperature)        /* <= 0: the most likely token */                                                    \
    X(int32_t, top_k)            /* 0: off */                                                                         \
    X(float, top_p)              /* 1: off */                                                                         \
    X(float, min_p)              /* 0: off */                                                                         \
    X(float, typical_p)          /* 1: off */                                                                         \
    X(float, top_n_sigma)        /* 0: off */                                                                         \
    X(float, xtc_probability)                                                                                          \
    X(float, xtc_threshold)                                                                                            \
    X(float, dry_multiplier)     /* 0: off */                                                                         \
    X(float, dry_base)                                                                                                 \
    X(int32_t, dry_allowed_length)                                                                                     \
    X(int32_t, dry_penalty_last_n)                                                                                     \
    X(float, repeat_penalty)     /* 1: off */                                                                         \
    X(int32_t, repeat_last_n)                                                                                          \
    X(float, frequency_penalty)                                                                                        \
    X(float, presence_penalty)                                                                                         \
    X(int32_t, mirostat)         /* 0, 1 or 2 */                                                                      \
    X(float, mirostat_tau)                                                                                             \
    X(float, mirostat_eta)

// Copy of `anneal_chain_params` with a member for each parameter.
struct ChainParams {
#define MEMBER(type, name) type name;
    CHAIN_NUMBERS(MEMBER)
#undef MEMBER
    uint32_t                 seed;
    const char * const *     dry_breakers;
    size_t                   n_dry_breakers;
    const llama_logit_bias * biases;
    size_t                   n_biases;
};

double number_of(const anneal_chain_params & params, const char * name) {
    for (size_t i = 0; i < params.n_numbers; ++i) {
        if (std::strcmp(params.numbers[i].name, name) == 0) {
            return params.numbers[i].value;
        }
    }
    throw std::invalid_argument(std::string("missing sampler parameter ") + name);
}

ChainParams read(const anneal_chain_params & params) {
    size_t known = 0;
#define COUNT(type, name) ++known;
    CHAIN_NUMBERS(COUNT)
#undef COUNT
    if (params.n_numbers != known) {
        throw std::invalid_argument("unknown sampler parameter");
    }
    ChainParams read = {};
#define READ(type, name) read.name = type(number_of(params, #name));
    CHAIN_NUMBERS(READ)
#undef READ
    read.seed           = params.seed;
    read.dry_breakers   = params.dry_breakers;
    read.n_dry_breakers = params.n_dry_breakers;
    read.biases         = params.biases;
    read.n_biases       = params.n_biases;
    return read;
}

constexpr const char * NO_NUMBERS = "the model's logits are NaN or infinite";

// Orders by logit, highest first, then by token.
bool is_better(const llama_token_data & a, const llama_token_data & b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Drops tokens whose probability, relative to the best token, is zero in exp() of single precision. typical and
// mirostat take the logarithm of each probability, and a single NaN would make all of their results NaN. If penalties
// left no possible token, all tokens are equally likely.
void drop_impossible(llama_sampler * /* sampler */, llama_token_data_array * tokens) {
    if (tokens->size == 0) {
        return;
    }
    float best = -INFINITY;
    for (size_t i = 0; i < tokens->size; ++i) {
        best = std::max(best, tokens->data[i].logit);
    }
    if (best == -INFINITY) {
        for (size_t i = 0; i < tokens->size; ++i) {
            tokens->data[i].logit = 0.0f;
        }
        return;
    }
    size_t kept = 0;
    for (size_t i = 0; i < tokens->size; ++i) {
        if (std::exp(tokens->data[i].logit - best) >= std::numeric_limits<float>::min()) {
            tokens->data[kept++] = tokens->data[i];
        }
    }
    tokens->size = kept;
}

const char * possible_name(const llama_sampler * /* sampler */) {
    return "possible";
}

llama_sampler_i possible_interface = {
    /* .name              = */ possible_name,
    /* .accept            = */ nullptr,
    /* .apply             = */ drop_impossible,
    /* .reset             = */ nullptr,
    /* .clone             = */ nullptr,
    /* .free              = */ nullptr,
    /* .backend_init      = */ nullptr,
    /* .backend_accept    = */ nullptr,
    /* .backend_apply     = */ nullptr,
    /* .backend_set_input = */ nullptr,
    /* .backend_reset     = */ nullptr,
    /* .copy_state        = */ nullptr,
};

// Below this temperature the best token is practically certain, and dividing logits by a smaller number would
// overflow.
constexpr float LEAST_TEMPERATURE = 1e-6f;

// Shifts logits so that the best logit stays finite when the logits are divided by any temperature. Other logits may
// become -inf, which means a probability of 0.
void make_finite(llama_sampler * /* sampler */, llama_token_data_array * tokens) {
    constexpr float GREAT = 1e6f;
    float           best  = -INFINITY;
    for (size_t i = 0; i < tokens->size; ++i) {
        best = std::max(best, tokens->data[i].logit);
    }
    if (std::abs(best) < GREAT || best == -INFINITY) {
        return;
    }
    for (size_t i = 0; i < tokens->size; ++i) {
        tokens->data[i].logit -= best;
    }
}

const char * finite_name(const llama_sampler * /* sampler */) {
    return "finite";
}

llama_sampler_i finite_interface = {
    /* .name              = */ finite_name,
    /* .accept            = */ nullptr,
    /* .apply             = */ make_finite,
    /* .reset             = */ nullptr,
    /* .clone             = */ nullptr,
    /* .free              = */ nullptr,
    /* .backend_init      = */ nullptr,
    /* .backend_accept    = */ nullptr,
    /* .backend_apply     = */ nullptr,
    /* .backend_set_input = */ nullptr,
    /* .backend_reset     = */ nullptr,
    /* .copy_state        = */ nullptr,
};

// Mirostat, version 1. llama.cpp's implementation converts its unbounded k to an int. mu grows with each token whose
// information content is below tau, so no value of tau is small enough to be safe.
struct Mirostat {
    float        n_vocab;
    float        tau;
    float        eta;
    float        mu;
    std::mt19937 rng;
};

void mirostat_apply(llama_sampler * sampler, llama_token_data_array * tokens) {
    constexpr size_t LOOKED_AT = 100;
    auto *           state     = static_cast<Mirostat *>(sampler->ctx);
    llama_token_data * const data = tokens->data;
    std::sort(data, data + tokens->size, is_better);
    tokens->sorted = true;
    const auto weight = [data](size_t i) { return std::exp(double(data[i].logit) - data[0].logit); };

    // Estimates the decay of probabilities from the most likely tokens.
    double ti_bi = 0.0;
    double ti_ti = 0.0;
    for (size_t i = 0; i + 1 < std::min(LOOKED_AT, tokens->size); ++i) {
        const double t = std::log(double(i + 2) / double(i + 1));
        ti_bi += t * (double(data[i].logit) - data[i + 1].logit);
        ti_ti += t * t;
    }
    if (ti_ti > 0.0) {
        const double s       = ti_bi / ti_ti;
        const double epsilon = s - 1.0;
        const double k = std::pow(epsilon * std::exp2(state->mu) / (1.0 - std::pow(state->n_vocab, -epsilon)), 1.0 / s);
        // False for NaN.
        if (k < double(tokens->size)) {
            tokens->size = std::max<size_t>(1, size_t(k));
        }
    }
    double sum = 0.0;
    for (size_t i = 0; i < tokens->size; ++i) {
        sum += weight(i);
    }
    for (size_t i = 0; i < tokens->size; ++i) {
        data[i].p = float(weight(i) / sum);
    }
    const double drawn = std::uniform_real_distribution<double>(0.0, 1.0)(state->rng);
    double       up_to = 0.0;
    size_t       i     = 0;
    for (; i + 1 < tokens->size; ++i) {
        up_to += data[i].p;
        if (drawn < up_to) {
            break;
        }
    }
    tokens->selected = int64_t(i);
    state->mu -= state->eta * (-std::log2(data[i].p) - state->tau);
}

const char * mirostat_name(const llama_sampler * /* sampler */) {
    return "mirostat";
}

void mirostat_free(llama_sampler * sampler) {
    delete static_cast<Mirostat *>(sampler->ctx);
}

llama_sampler_i mirostat_interface = {
    /* .name              = */ mirostat_name,
    /* .accept            = */ nullptr,
    /* .apply             = */ mirostat_apply,
    /* .reset             = */ nullptr,
    /* .clone             = */ nullptr,
    /* .free              = */ mirostat_free,
    /* .backend_init      = */ nullptr,
    /* .backend_accept    = */ nullptr,
    /* .backend_apply     = */ nullptr,
    /* .backend_set_input = */ nullptr,
    /* .backend_reset     = */ nullptr,
    /* .copy_state        = */ nullptr,
};

llama_sampler * mirostat_of(const ChainParams & params, int32_t n_vocab) {
    auto * state = new Mirostat{ float(n_vocab), params.mirostat_tau, params.mirostat_eta, 2.0f * params.mirostat_tau,
                                 std::mt19937(params.seed) };
    return llama_sampler_init(&mirostat_interface, state);
}

// Last tokens, and the number of occurrences of each.
struct Window {
    std::vector<llama_token>             ring;
    size_t                               size = 0;
    size_t                               next = 0;
    std::unordered_map<llama_token, int> counts;

    void push(llama_token token) {
        if (size == 0) {
            return;
        }
        if (ring.size() < size) {
            ring.push_back(token);
        } else {
            const auto old = counts.find(ring[next]);
            if (--old->second == 0) {
                counts.erase(old);
            }
            ring[next] = token;
            next       = (next + 1) % size;
        }
        ++counts[token];
    }
};

}  // namespace

struct anneal_chain {
    llama_sampler * repeats = nullptr;  // penalties and DRY
    llama_sampler * rest    = nullptr;  // samplers that truncate, and the sampler that chooses; null if the best token is chosen
    size_t          needed  = 0;        // number of best tokens that the chain keeps; 0: all

    std::vector<llama_logit_bias> biases;  // by token
    Window                        window;
    Tokens                        tokens;
    Tokens                        repeated;
    llama_token_data_array        candidates = { nullptr, 0, -1, false };

    ~anneal_chain() {
        llama_sampler_free(repeats);
        llama_sampler_free(rest);
    }

    // Candidates are sorted by token until a sampler sorts them.
    llama_token_data * find(llama_token token) {
        if (size_t(token) < tokens.size() && tokens[token].id == token) {
            return &tokens[token];
        }
        const auto place = std::lower_bound(
            tokens.begin(), tokens.end(), token,
            [](const llama_token_data & data, llama_token wanted) { return data.id < wanted; });
        return place != tokens.end() && place->id == token ? &*place : nullptr;
    }

    // Applies llama.cpp's penalties to the tokens that have occurred. Penalties do not change other tokens, and
    // looking up each of a hundred thousand other tokens would take longer than all other work.
    void apply_repeats() {
        if (window.counts.empty()) {
            return;
        }
        repeated.clear();
        for (const auto & seen : window.counts) {
            if (const llama_token_data * data = find(seen.first)) {
                repeated.push_back(*data);
            }
        }
        llama_token_data_array array = { repeated.data(), repeated.size(), -1, false };
        llama_sampler_apply(repeats, &array);
        for (const llama_token_data & data : repeated) {
            find(data.id)->logit = data.logit;
        }
    }

    // Returns true if the chain only needs the best `needed` tokens of the row, because nothing changes their order
    // before the truncation.
    bool only_best(size_t n_vocab, const uint32_t * mask) const {
        return needed > 0 && needed < n_vocab / 16 && mask == nullptr && biases.empty() && window.counts.empty();
    }

    // Collects the best `needed` tokens and a few others, without a list of all tokens.
    void take_best(const float * logits, size_t n_vocab) {
        constexpr size_t BLOCK = 64;
        const size_t     most  = std::max<size_t>(256, 4 * needed);
        float            least = -INFINITY;
        bool             bad   = false;
        tokens.clear();
        for (size_t begin = 0; begin < n_vocab; begin += BLOCK) {
            const size_t end  = std::min(n_vocab, begin + BLOCK);
            bool         some = false;
            for (size_t i = begin; i < end; ++i) {
                some |= logits[i] > least;
                bad |= !(logits[i] < INFINITY);
            }
            if (!some) {
                continue;
            }
            for (size_t i = begin; i < end; ++i) {
                if (logits[i] > least) {
                    tokens.push_back({ llama_token(i), logits[i], 0.0f });
                }
            }
            if (tokens.size() >= most) {
                std::nth_element(tokens.begin(), tokens.begin() + (needed - 1), tokens.end(), is_better);
                tokens.resize(needed);
                least = tokens.back().logit;
            }
        }
        if (bad) {
            throw std::runtime_error(NO_NUMBERS);
        }
    }

    // Collects the possible tokens, sorted by token.
    void take(const float * logits, size_t n_vocab, const uint32_t * mask) {
        bool bad  = false;
        bool gone = false;
        for (size_t i = 0; i < n_vocab; ++i) {
            bad |= !(logits[i] < INFINITY);
            gone |= logits[i] == -INFINITY;
        }
        if (bad) {
            throw std::runtime_error(NO_NUMBERS);
        }
        tokens.resize(n_vocab);
        if (mask == nullptr) {
            for (size_t i = 0; i < n_vocab; ++i) {
                tokens[i] = { llama_token(i), logits[i], 0.0f };
            }
        } else {
            size_t n = 0;
            for (size_t i = 0; i < n_vocab; ++i) {
                tokens[n] = { llama_token(i), logits[i], 0.0f };
                n += mask[i / 32] >> (i % 32) & 1;
            }
            tokens.resize(n);
        }
        for (const llama_logit_bias & bias : biases) {
            if (llama_token_data * data = find(bias.token)) {
                data->logit += bias.bias;
            }
        }
        if (gone || !biases.empty()) {
            drop_banned();
        }
    }

    // Collects the tokens that a device left, with their logits. The tokens are sorted by token, as `find` requires.
    // If the device has truncated the list, the best tokens come first, as after the host's samplers, so that the
    // same random number gives the same token.
    void take_left(const float * logits, const llama_token * ids, size_t n, bool is_cut) {
        tokens.clear();
        for (size_t i = 0; i < n; ++i) {
            if (!(logits[i] < INFINITY)) {
                throw std::runtime_error(NO_NUMBERS);
            }
            if (logits[i] != -INFINITY) {
                tokens.push_back({ ids[i], logits[i], 0.0f });
            }
        }
        bool (*const by_token)(const llama_token_data &, const llama_token_data &) =
            [](const llama_token_data & a, const llama_token_data & b) { return a.id < b.id; };
        std::sort(tokens.begin(), tokens.end(), is_cut ? is_better : by_token);
    }

    void drop_banned() {
        const auto banned = [](const llama_token_data & data) { return data.logit == -INFINITY; };
        tokens.erase(std::remove_if(tokens.begin(), tokens.end(), banned), tokens.end());
    }

    llama_token choose() {
        if (tokens.empty()) {
            throw std::runtime_error("no token is left to choose from: the grammar and the banned tokens exclude all tokens");
        }
        candidates = { tokens.data(), tokens.size(), -1, false };
        if (rest == nullptr) {
            const auto best = std::min_element(tokens.begin(), tokens.end(), is_better);
            candidates.selected = best - tokens.begin();
        } else {
            llama_sampler_apply(rest, &candidates);
        }
        if (candidates.selected < 0 || size_t(candidates.selected) >= candidates.size) {
            throw std::runtime_error("llama.cpp's samplers chose no token");
        }
        return candidates.data[candidates.selected].id;
    }

    // Returns the first token with the highest logit, or -1 if a logit is not a number. Nothing is copied. Blocks
    // without a higher logit (nearly all blocks) are processed without a branch.
    static llama_token best(const float * logits, size_t n_vocab) {
        constexpr size_t BLOCK    = 64;
        float            greatest = -INFINITY;
        size_t           best     = 0;
        bool             bad      = false;
        for (size_t begin = 0; begin < n_vocab; begin += BLOCK) {
            const size_t end  = std::min(n_vocab, begin + BLOCK);
            bool         some = false;
            for (size_t i = begin; i < end; ++i) {
                some |= logits[i] > greatest;
                bad |= !(logits[i] < INFINITY);
            }
            for (size_t i = some ? begin : end; i < end; ++i) {
                if (logits[i] > greatest) {
                    greatest = logits[i];
                    best     = i;
                }
            }
        }
        return bad || n_vocab == 0 ? -1 : llama_token(best);
    }
};

namespace {

std::vector<llama_logit_bias> biases_of(const ChainParams & params, const llama_vocab * vocab) {
    std::vector<llama_logit_bias> biases(params.biases, params.biases + params.n_biases);
    int32_t                       n_suppressed = 0;
    const llama_token *           suppressed   = llama_vocab_get_suppress_tokens(vocab, &n_suppressed);
    for (int32_t i = 0; i < n_suppressed; ++i) {
        biases.push_back({ suppressed[i], -INFINITY });
    }
    return biases;
}

// Builds the samplers in the order of llama.cpp's common sampler. At temperature 0 the best token is chosen, so only
// samplers that can remove the best token are used.
llama_sampler * rest_of(const ChainParams & params, int32_t n_vocab) {
    const bool greedy = params.temperature <= 0.0f;
    const bool xtc    = params.xtc_probability > 0.0f && params.xtc_threshold <= 0.5f;
    const bool plain  = params.typical_p >= 1.0f && !xtc;
    const float temperature = std::max(params.temperature, LEAST_TEMPERATURE);
    if (greedy && plain) {
        return nullptr;
    }
    llama_sampler_chain_params chain_params = llama_sampler_chain_default_params();
    chain_params.no_perf                    = true;
    llama_sampler * chain                   = llama_sampler_chain_init(chain_params);
    const auto      add = [chain](llama_sampler * sampler) { llama_sampler_chain_add(chain, sampler); };

    if (!plain || params.mirostat != 0 || params.dry_multiplier > 0.0f) {
        add(llama_sampler_init(&possible_interface, nullptr));
    }
    if (params.mirostat != 0 && !greedy) {
        add(llama_sampler_init(&finite_interface, nullptr));
        add(llama_sampler_init_temp(temperature));
        add(params.mirostat == 1
                ? mirostat_of(params, n_vocab)
                : llama_sampler_init_mirostat_v2(params.seed, params.mirostat_tau, params.mirostat_eta));
        return chain;
    }
    if (params.top_n_sigma > 0.0f) {
        add(llama_sampler_init_top_n_sigma(params.top_n_sigma));
    }
    if (params.top_k > 0) {
        add(llama_sampler_init_top_k(params.top_k));
    }
    if (params.typical_p < 1.0f) {
        // top-n-sigma does not remove impossible tokens.
        add(llama_sampler_init(&possible_interface, nullptr));
        add(llama_sampler_init_typical(params.typical_p, 1));
    }
    if (params.top_p < 1.0f) {
        add(llama_sampler_init_top_p(params.top_p, 1));
    }
    if (params.min_p > 0.0f) {
        add(llama_sampler_init_min_p(params.min_p, 1));
    }
    if (xtc) {
        add(llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, 1, params.seed));
    }
    if (greedy) {
        add(llama_sampler_init_greedy());
    } else {
        add(llama_sampler_init(&finite_interface, nullptr));
        add(llama_sampler_init_temp(temperature));
        add(llama_sampler_init_dist(params.seed));
    }
    return chain;
}

}  // namespace

anneal_chain * anneal_chain_make(const llama_vocab * vocab, const anneal_chain_params * asked) {
    const ChainParams params = read(*asked);
    auto *        chain   = new anneal_chain;
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    try {
        chain->biases    = biases_of(params, vocab);
        const bool penal = params.repeat_last_n > 0 && (params.repeat_penalty != 1.0f || params.frequency_penalty != 0.0f ||
                                                         params.presence_penalty != 0.0f);
        const bool dry   = params.dry_multiplier > 0.0f && params.dry_penalty_last_n > 0;
        if (penal || dry) {
            chain->window.size = size_t(std::max(penal ? params.repeat_last_n : 0, dry ? params.dry_penalty_last_n : 0));
            llama_sampler_chain_params chain_params = llama_sampler_chain_default_params();
            chain_params.no_perf                    = true;
            chain->repeats                          = llama_sampler_chain_init(chain_params);
        }
        if (penal) {
            llama_sampler_chain_add(
                chain->repeats, llama_sampler_init_penalties(
                                    n_vocab, params.repeat_last_n, params.repeat_penalty, params.frequency_penalty,
                                    params.presence_penalty));
        }
        if (dry) {
            llama_sampler_chain_add(
                chain->repeats,
                llama_sampler_init_dry(
                    vocab, params.dry_multiplier, params.dry_base, params.dry_allowed_length, params.dry_penalty_last_n,
                    const_cast<const char **>(params.dry_breakers), params.n_dry_breakers));
        }
        chain->rest = rest_of(params, n_vocab);
        if (chain->rest == nullptr) {
            chain->needed = 1;
        } else if (params.top_k > 0 && params.top_n_sigma <= 0.0f && (params.mirostat == 0 || params.temperature <= 0.0f)) {
            chain->needed = size_t(params.top_k);
        }
    } catch (...) {
        delete chain;
        throw;
    }
    return chain;
}

llama_token anneal_chain_pick(anneal_chain * chain, const float * logits, size_t n_vocab, const uint32_t * mask) {
    // Candidates of the last call are discarded: they may belong to another row, or to a freed buffer.
    chain->candidates = { nullptr, 0, -1, false };
    const bool plain = chain->rest == nullptr && chain->window.counts.empty() && chain->biases.empty() && mask == nullptr;
    if (plain) {
        const llama_token best = anneal_chain::best(logits, n_vocab);
        if (best < 0) {
            throw std::runtime_error(NO_NUMBERS);
        }
        return best;
    }
    if (chain->only_best(n_vocab, mask)) {
        chain->take_best(logits, n_vocab);
        return chain->choose();
    }
    chain->take(logits, n_vocab, mask);
    chain->apply_repeats();
    return chain->choose();
}

llama_token anneal_chain_pick_left(anneal_chain * chain, llama_context * ctx, int32_t row) {
    chain->candidates = { nullptr, 0, -1, false };
    // The first of these calls waits for the results.
    const float *       logits = llama_get_sampled_logits_ith(ctx, row);
    const size_t        n      = llama_get_sampled_logits_count_ith(ctx, row);
    const llama_token * ids    = llama_get_sampled_candidates_ith(ctx, row);
    if (logits == nullptr || ids == nullptr || n == 0) {
        throw std::runtime_error("the device left no logits to choose from");
    }
    // All samplers that depend on the text precede the truncation.
    chain->take_left(logits, ids, n, llama_get_sampled_candidates_count_ith(ctx, row) > 0);
    chain->apply_repeats();
    return chain->choose();
}

namespace {

// Ends a device's chain so that its candidates are not copied to the host. Otherwise llama.cpp copies a row of logits
// and a row of probabilities for each token.
void only_token_apply(
        llama_sampler * /* sampler */, ggml_context * /* ctx */, ggml_cgraph * /* graph */, llama_sampler_data * data) {
    if (data->sampled != nullptr) {
        data->logits     = nullptr;
        data->probs      = nullptr;
        data->candidates = nullptr;
    }
}

bool only_token_init(llama_sampler * /* sampler */, ggml_backend_buffer_type_t /* type */, uint32_t /* rows */) {
    return true;
}

const char * only_token_name(const llama_sampler * /* sampler */) {
    return "+token";
}

llama_sampler_i only_token_interface = {
    /* .name              = */ only_token_name,
    /* .accept            = */ nullptr,
    /* .apply             = */ nullptr,
    /* .reset             = */ nullptr,
    /* .clone             = */ nullptr,
    /* .free              = */ nullptr,
    /* .backend_init      = */ only_token_init,
    /* .backend_accept    = */ nullptr,
    /* .backend_apply     = */ only_token_apply,
    /* .backend_set_input = */ nullptr,
    /* .backend_reset     = */ nullptr,
    /* .copy_state        = */ nullptr,
};

// Sorts the best tokens first, unless top-p follows top-k, because top-p also sorts. ggml does not define the order
// after top-k, and in another order the same random number would give another token.
void order_apply(
        llama_sampler * /* sampler */, ggml_context * ctx, ggml_cgraph * /* graph */, llama_sampler_data * data) {
    ggml_tensor * logits = ggml_reshape_1d(ctx, data->logits, ggml_nelements(data->logits));
    ggml_tensor * order  = ggml_argsort(ctx, logits, GGML_SORT_ORDER_DESC);
    const auto    sorted = [ctx, order](ggml_tensor * values) {
        return ggml_get_rows(ctx, ggml_reshape_2d(ctx, values, 1, ggml_nelements(values)), order);
    };
    data->candidates = data->candidates != nullptr ? sorted(data->candidates) : order;
    data->logits     = ggml_reshape_1d(ctx, sorted(logits), ggml_nelements(logits));
}

// Checks that the device supports the operations, for the number of tokens that llama.cpp uses for its own samplers.
bool order_init(llama_sampler * sampler, ggml_backend_buffer_type_t type, uint32_t /* rows */) {
    constexpr int64_t        TOKENS = 128 * 1024;
    const ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
    if (device == nullptr) {
        return true;
    }
    const ggml_init_params params = { 16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true };
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> ctx(ggml_init(params), ggml_free);
    if (ctx == nullptr) {
        return false;
    }
    llama_sampler_data data = { ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, TOKENS), nullptr, nullptr,
                                ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, TOKENS) };
    order_apply(sampler, ctx.get(), nullptr, &data);
    for (ggml_tensor * op = ggml_get_first_tensor(ctx.get()); op != nullptr; op = ggml_get_next_tensor(ctx.get(), op)) {
        if (op->op != GGML_OP_NONE && !ggml_backend_dev_supports_op(device, op)) {
            return false;
        }
    }
    return true;
}

const char * order_name(const llama_sampler * /* sampler */) {
    return "+order";
}

llama_sampler_i order_interface = {
    /* .name              = */ order_name,
    /* .accept            = */ nullptr,
    /* .apply             = */ nullptr,
    /* .reset             = */ nullptr,
    /* .clone             = */ nullptr,
    /* .free              = */ nullptr,
    /* .backend_init      = */ order_init,
    /* .backend_accept    = */ nullptr,
    /* .backend_apply     = */ order_apply,
    /* .backend_set_input = */ nullptr,
    /* .backend_reset     = */ nullptr,
    /* .copy_state        = */ nullptr,
};

// One entry per token: a device stores each entry and does not accumulate.
std::vector<llama_logit_bias> added_up(const std::vector<llama_logit_bias> & biases) {
    std::vector<llama_logit_bias> sums;
    std::unordered_map<llama_token, size_t> places;
    for (const llama_logit_bias & bias : biases) {
        const auto place = places.emplace(bias.token, sums.size());
        if (place.second) {
            sums.push_back(bias);
        } else {
            sums[place.first->second].bias += bias.bias;
        }
    }
    return sums;
}

}  // namespace

llama_sampler * anneal_device_chain_make(
        const llama_context * ctx, const anneal_chain_params & asked, anneal_device_end end, uint64_t drawn,
        const llama_token * seen, size_t n_seen) {
    const ChainParams   params  = read(asked);
    const llama_vocab * vocab   = llama_model_get_vocab(llama_get_model(ctx));
    const int32_t       n_vocab = llama_vocab_n_tokens(vocab);
    llama_sampler_chain_params chain_params = llama_sampler_chain_default_params();
    chain_params.no_perf                    = true;
    llama_sampler * chain                   = llama_sampler_chain_init(chain_params);
    try {
        const auto add = [chain](llama_sampler * sampler) { llama_sampler_chain_add(chain, sampler); };
        const std::vector<llama_logit_bias> biases = added_up(biases_of(params, vocab));
        if (!biases.empty()) {
            add(llama_sampler_init_logit_bias(n_vocab, int32_t(biases.size()), biases.data()));
        }
        if (params.repeat_last_n > 0 && (params.repeat_penalty != 1.0f || params.frequency_penalty != 0.0f ||
                                         params.presence_penalty != 0.0f)) {
            add(llama_sampler_init_penalties(
                n_vocab, params.repeat_last_n, params.repeat_penalty, params.frequency_penalty, params.presence_penalty));
        }
        const bool greedy = params.temperature <= 0.0f;
        if (!greedy || end == ANNEAL_DEVICE_CUTS) {
            if (params.top_k > 0 && params.top_k < n_vocab) {
                add(llama_sampler_init_top_k(params.top_k));
            }
            if (params.top_p < 1.0f) {
                add(llama_sampler_init_top_p(params.top_p, 1));
            } else if (params.top_k > 0 && params.top_k < n_vocab && end == ANNEAL_DEVICE_CHOOSES) {
                add(llama_sampler_init(&order_interface, nullptr));
            }
            if (params.min_p > 0.0f) {
                add(llama_sampler_init_min_p(params.min_p, 1));
            }
        }
        if (end >= ANNEAL_DEVICE_TEMPERS && !greedy && params.temperature != 1.0f) {
            add(llama_sampler_init_temp(std::max(params.temperature, LEAST_TEMPERATURE)));
        }
        if (end == ANNEAL_DEVICE_CHOOSES) {
            llama_sampler * chooses = greedy ? llama_sampler_init_greedy() : llama_sampler_init_dist(params.seed);
            add(chooses);
            // Advances the random generator: it draws a number even for a single candidate.
            llama_token_data alone = { 0, 0.0f, 0.0f };
            for (uint64_t i = 0; i < drawn && !greedy; ++i) {
                llama_token_data_array array = { &alone, 1, -1, false };
                llama_sampler_apply(chooses, &array);
            }
            add(llama_sampler_init(&only_token_interface, nullptr));
        }
        for (size_t i = 0; i < n_seen; ++i) {
            llama_sampler_accept(chain, seen[i]);
        }
    } catch (...) {
        llama_sampler_free(chain);
        throw;
    }
    return chain;
}

const char * anneal_device_name(const char * marked) {
    static constexpr const char * NAMES[] = { "logit-bias", "penalties", "top-k", "top-p", "min-p", "temp", "dist", "greedy" };
    // A sampler that was not checked has no mark. The sampler before it belongs to Anneal, and the device does not
    // support the operations of that sampler.
    const char * plain = marked[0] == '-' ? marked + 1 : marked;
    for (const char * name : NAMES) {
        if (std::strcmp(plain, name) == 0) {
            return name;
        }
    }
    return "";
}

void anneal_chain_take(anneal_chain * chain, llama_token token, bool generated) {
    if (chain->repeats != nullptr) {
        chain->window.push(token);
        llama_sampler_accept(chain->repeats, token);
    }
    if (generated && chain->rest != nullptr) {
        llama_sampler_accept(chain->rest, token);
    }
}

void anneal_chain_free(anneal_chain * chain) {
    delete chain;
}

size_t anneal_chain_window(const anneal_chain * chain) {
    return chain->window.size;
}

bool anneal_chain_is_argmax(const anneal_chain * chain) {
    return chain->rest == nullptr && chain->window.size == 0 && chain->biases.empty();
}

const llama_token_data * anneal_chain_candidates(const anneal_chain * chain, size_t * n_candidates) {
    *n_candidates = chain->candidates.size;
    return chain->candidates.data;
}
