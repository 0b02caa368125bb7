// Workers on other machines: ggml's RPC, as client and as server.
//
// ggml ends the process when a connection breaks, without a word on whose it was. So the connections are kept in mind as
// long as they work, and the one that does not any more is looked for at the end.

#include "shim.h"

#include "remote.hpp"

#include "ggml-backend.h"

#if __has_include("ggml-rpc.h")
#include "ggml-rpc.h"
#endif

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

struct worker {
    std::string name;  // as the user calls it
    sockaddr_in address;
};

struct connection {
    int    fd;
    size_t worker;
};

struct workers {
    std::mutex              mutex;
    std::vector<worker>     all;
    std::vector<connection> open;
};

// Never destroyed: ggml's threads may end the process while it ends.
workers & the_workers() {
    static workers * one = new workers;
    return *one;
}

std::atomic<bool> serving { false };

ggml_backend_reg_t registry() {
    return ggml_backend_reg_by_name("RPC");
}

void * function(const char * name) {
    ggml_backend_reg_t reg = registry();
    return reg == nullptr ? nullptr : ggml_backend_reg_get_proc_address(reg, name);
}

void say(char * err, size_t err_size, const char * text) {
    if (err_size > 0) {
        std::snprintf(err, err_size, "%s", text);
    }
}

bool parse(const char * endpoint, sockaddr_in & address) {
    const char * colon = std::strrchr(endpoint, ':');
    if (colon == nullptr) {
        return false;
    }
    address                 = {};
    address.sin_family      = AF_INET;
    address.sin_port        = htons((uint16_t) std::atoi(colon + 1));
    const std::string host(endpoint, colon);
    return inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1;
}

bool same(const sockaddr_in & a, const sockaddr_in & b) {
    return a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr;
}

#ifdef __linux__
// Whether the other side ended the connection, in order (then it is still known who that was) or not. The file may be
// another one by now.
bool is_broken(int fd, const sockaddr_in & peer) {
    tcp_info  info = {};
    socklen_t size = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
        return false;
    }
    sockaddr_in address = {};
    size                = sizeof(address);
    return info.tcpi_state == TCP_CLOSE ||
           (info.tcpi_state == TCP_CLOSE_WAIT && getpeername(fd, (sockaddr *) &address, &size) == 0 && same(address, peer));
}

// Whether the other machine has answered nothing for some twenty seconds although something was sent to it again and again.
// Not the time alone tells: a worker that computes takes nothing more in, and is then asked once in two minutes, which it
// answers. The system itself would go on for a quarter of an hour.
bool is_silent(int fd) {
    constexpr uint8_t  TIMES   = 7;  // from 0.2 s on, twice as long each time
    constexpr uint32_t MS      = 20000;
    tcp_info           info    = {};
    socklen_t          size    = sizeof(info);
    const bool         is_open = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_ESTABLISHED;
    return is_open && info.tcpi_last_ack_recv >= MS && (info.tcpi_retransmits >= TIMES || info.tcpi_probes >= TIMES);
}

// The system asks the other machine every few seconds whether it is there, as long as nothing else is under way: a worker
// whose machine is gone is noticed in half a minute, and not never.
void keep_alive(int fd) {
    const int on = 1, idle = 10, interval = 5, count = 4;
    (void) setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

// What was sent and is not taken for so long ends the connection.
void give_up_after(int fd, unsigned ms) {
    (void) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

// Calls `body` with each of this process's connections by IPv4, and whom it is with.
template <typename Body> void each_connection(Body && body) {
    DIR * folder = opendir("/proc/self/fd");
    if (folder == nullptr) {
        return;
    }
    std::vector<int> files;
    while (const dirent * entry = readdir(folder)) {
        if (entry->d_name[0] != '.') {
            files.push_back(std::atoi(entry->d_name));
        }
    }
    closedir(folder);
    for (const int fd : files) {
        sockaddr_in address = {};
        socklen_t   size    = sizeof(address);
        if (getpeername(fd, (sockaddr *) &address, &size) == 0 && address.sin_family == AF_INET) {
            body(fd, address);
        }
    }
}
#else
bool is_broken(int, const sockaddr_in &) {
    return false;
}

bool is_silent(int) {
    return false;
}

void keep_alive(int) {}

void give_up_after(int, unsigned) {}

template <typename Body> void each_connection(Body &&) {}
#endif

// This process's connections to workers.
std::vector<connection> connections(const std::vector<worker> & all) {
    std::vector<connection> found;
    each_connection([&](int fd, const sockaddr_in & address) {
        for (size_t at = 0; at < all.size(); ++at) {
            if (same(all[at].address, address)) {
                found.push_back({ fd, at });
            }
        }
    });
    return found;
}

// Whether a worker takes connections, asked for two seconds at most.
bool answers(const sockaddr_in & address) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) {
        return true;  // nothing is known of it
    }
    (void) fcntl(fd, F_SETFL, O_NONBLOCK);
    bool connected = connect(fd, (const sockaddr *) &address, sizeof(address)) == 0;
    if (!connected && errno == EINPROGRESS) {
        pollfd    wait  = { fd, POLLOUT, 0 };
        int       error = -1;
        socklen_t size  = sizeof(error);
        connected       = poll(&wait, 1, 2000) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
    }
    close(fd);
    return connected;
}

constexpr const char * MEND =
    "Look at what `anneal worker` said last on that machine, and whether it has the memory for its part; start it and this\n"
    "  command again. What was computed there is gone.";

// Looks every second whether a worker's machine is there, and ends the process where it is not: ggml waits for it.
void look_for_silence() {
    for (;; sleep(1)) {
        workers &                   known = the_workers();
        std::lock_guard<std::mutex> lock(known.mutex);
        for (const connection & one : known.open) {
            const worker & far     = known.all[one.worker];
            sockaddr_in    address = {};
            socklen_t      size    = sizeof(address);
            if (is_silent(one.fd) && getpeername(one.fd, (sockaddr *) &address, &size) == 0 && same(address, far.address)) {
                std::fprintf(
                    stderr, "error: the connection to the worker %s is lost\n  caused by: its machine does not answer\n  %s\n",
                    far.name.c_str(), MEND);
                std::fflush(stderr);
                _exit(1);
            }
        }
    }
}

std::string joined(const std::vector<std::string> & names) {
    std::string text;
    for (const std::string & name : names) {
        text += (text.empty() ? "" : ", ") + name;
    }
    return text;
}

// The workers whose connection broke.
std::vector<std::string> lost(workers & known) {
    std::lock_guard<std::mutex> lock(known.mutex);
    std::vector<bool>           dead(known.all.size(), false);
    // The end of the other side closes a connection here at once, however the process there ended.
    std::vector<connection> open = known.open;
    for (const connection & now : connections(known.all)) {
        open.push_back(now);
    }
    bool any = false;
    for (const connection & one : open) {
        if (is_broken(one.fd, known.all[one.worker].address)) {
            any = dead[one.worker] = true;
        }
    }
    for (size_t at = 0; !any && at < known.all.size(); ++at) {
        dead[at] = !answers(known.all[at].address);
    }
    std::vector<std::string> names;
    for (size_t at = 0; at < known.all.size(); ++at) {
        if (dead[at]) {
            names.push_back(known.all[at].name);
        }
    }
    return names;
}

}  // namespace

remote_failure explain_remote(const char * message) {
    if (std::strstr(message, "ggml-rpc") == nullptr) {
        return {};
    }
    if (serving) {
        return { "a client of this worker asked for what it cannot do",
                 "A client of another llama.cpp's does that, or one that means harm; or memory is short. Start the worker again, and\n"
                 "  let nobody reach it whom you do not trust." };
    }
    workers &                      known = the_workers();
    const std::vector<std::string> names = lost(known);
    std::string                    all;
    {
        std::lock_guard<std::mutex> lock(known.mutex);
        std::vector<std::string>    list;
        for (const worker & one : known.all) {
            list.push_back(one.name);
        }
        all = joined(list);
    }
    const std::string whose =
        names.empty() ? (known.all.size() == 1 ? "the worker " : "one of the workers ") + all :
                        (names.size() == 1 ? "the worker " : "the workers ") + joined(names);
    return { "the connection to " + whose + " is lost", MEND };
}

bool anneal_rpc_version(uint8_t * major, uint8_t * minor) {
#ifdef RPC_PROTO_MAJOR_VERSION
    *major = RPC_PROTO_MAJOR_VERSION;
    *minor = RPC_PROTO_MINOR_VERSION;
    try {
        return function("ggml_backend_rpc_add_server") != nullptr;
    } catch (...) {
    }
#endif
    return false;
}

bool anneal_rpc_add(const char * endpoint, const char * name, char * err, size_t err_size) {
    say(err, err_size, "");
    try {
        auto *      add     = (ggml_backend_reg_t (*)(const char *)) function("ggml_backend_rpc_add_server");
        sockaddr_in address = {};
        if (add == nullptr || !parse(endpoint, address)) {
            say(err, err_size, "this build has no RPC in it, or the address is none");
            return false;
        }
        workers & known = the_workers();
        {
            // Before: the process may end in what follows, and then it is this one's doing.
            std::lock_guard<std::mutex> lock(known.mutex);
            known.all.push_back({ name, address });
        }
        ggml_backend_reg_t reg = add(endpoint);
        if (reg == nullptr) {
            std::lock_guard<std::mutex> lock(known.mutex);
            known.all.pop_back();
            say(err, err_size, "it has no device to compute on");
            return false;
        }
        ggml_backend_register(reg);
        return true;
    } catch (const std::exception & error) {
        say(err, err_size, error.what());
    } catch (...) {
        say(err, err_size, "unknown C++ exception");
    }
    return false;
}

void anneal_rpc_watch(void) {
    try {
        workers &                   known = the_workers();
        std::lock_guard<std::mutex> lock(known.mutex);
        if (known.all.empty()) {
            return;
        }
        known.open = connections(known.all);
        for (const connection & one : known.open) {
            keep_alive(one.fd);
        }
        static std::once_flag once;
        std::call_once(once, [] { std::thread(look_for_silence).detach(); });
    } catch (...) {
        // Without memory for a list nothing is watched.
    }
}

void anneal_rpc_watch_clients(uint16_t port) {
    try {
        each_connection([&](int fd, const sockaddr_in &) {
            sockaddr_in own  = {};
            socklen_t   size = sizeof(own);
            if (getsockname(fd, (sockaddr *) &own, &size) == 0 && ntohs(own.sin_port) == port) {
                keep_alive(fd);
                // A client reads whatever is sent to it.
                give_up_after(fd, 60000);
            }
        });
    } catch (...) {
        // As above.
    }
}

void anneal_rpc_serve(
        const char * endpoint, size_t threads, ggml_backend_dev_t * devices, size_t n_devices, char * err, size_t err_size) {
    using serve_fn = void (*)(const char *, const char *, size_t, size_t, ggml_backend_dev_t *);
    say(err, err_size, "this build has no RPC in it");
    try {
        auto * serve = (serve_fn) function("ggml_backend_rpc_start_server");
        if (serve == nullptr) {
            return;
        }
        say(err, err_size, "ggml's server could not be started there");
        // What it prints is read line by line.
        (void) setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
        serving = true;
        serve(endpoint, nullptr, threads, n_devices, devices);
    } catch (const std::exception & error) {
        say(err, err_size, error.what());
    } catch (...) {
        say(err, err_size, "unknown C++ exception");
    }
}
