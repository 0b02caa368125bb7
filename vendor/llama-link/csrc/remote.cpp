// Workers on other machines: client and server of ggml's RPC.
//
// If a connection breaks, ggml ends the process without naming the connection. Therefore, all connections are
// recorded while they work, and the broken connection is looked up when the process ends.

#include "shim.h"

#include "remote.hpp"

#include "ggml-backend.h"

#if __has_include("ggml-rpc.h")
#include "ggml-rpc.h"
#endif

#include <algorithm>
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
    std::string name;  // name in messages
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

// Never destroyed, because ggml's threads may end the process while it is already ending.
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
// Returns true if the other side has ended the connection, normally (the address is then still known) or abnormally.
// The descriptor may already refer to another file.
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

// Returns true if the other machine has not answered for about twenty seconds, although data was retransmitted
// repeatedly. The time alone is not sufficient: a computing worker receives no data, and is probed only once every
// two minutes. The system itself would wait for a quarter of an hour.
bool is_silent(int fd) {
    constexpr uint8_t  TIMES   = 7;  // after 0.2 s, then twice as long each time
    constexpr uint32_t MS      = 20000;
    tcp_info           info    = {};
    socklen_t          size    = sizeof(info);
    const bool         is_open = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_ESTABLISHED;
    return is_open && info.tcpi_last_ack_recv >= MS && (info.tcpi_retransmits >= TIMES || info.tcpi_probes >= TIMES);
}

// Enables keep-alive: on an idle connection, the system probes the other machine every few seconds. A worker whose
// machine disappears is then noticed within half a minute instead of never.
void keep_alive(int fd) {
    const int on = 1, idle = 10, interval = 5, count = 4;
    (void) setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

// Ends the connection if sent data is not acknowledged within `ms` milliseconds.
void give_up_after(int fd, unsigned ms) {
    (void) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

// Calls `body` with each IPv4 connection of this process and the address of its peer.
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

// Returns this process's connections to workers.
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

// Returns true if a worker accepts connections, with a time limit of two seconds.
bool answers(const sockaddr_in & address) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) {
        return true;  // unknown
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
    "check the last messages of `anneal worker` and the memory of its machine, then start the worker and this command\n"
    "  again; the worker's results are lost";

// Checks every second that the workers and their machines are alive, and ends the process if a worker or a machine is
// not. Without this check, ggml would wait forever for a machine that has disappeared. ggml would notice that a
// worker ended only when it next needs the worker, which for a server is the next request.
void look_after_workers() {
    std::vector<int> ended;  // broken a second ago; ggml may be about to report it itself
    for (;; sleep(1)) {
        std::string  name;
        const char * why = nullptr;
        {
            workers &                   known = the_workers();
            std::lock_guard<std::mutex> lock(known.mutex);
            std::vector<int>            now;
            for (const connection & one : known.open) {
                const worker & far     = known.all[one.worker];
                sockaddr_in    address = {};
                socklen_t      size    = sizeof(address);
                // The descriptor may have been closed and reused for another file.
                if (getpeername(one.fd, (sockaddr *) &address, &size) != 0 || !same(address, far.address)) {
                    continue;
                }
                if (is_broken(one.fd, far.address)) {
                    now.push_back(one.fd);
                }
                if (is_silent(one.fd)) {
                    name = far.name;
                    why  = "the worker's machine does not respond";
                } else if (is_broken(one.fd, far.address) && std::find(ended.begin(), ended.end(), one.fd) != ended.end()) {
                    name = far.name;
                    why  = "the worker ended or closed the connection";
                }
            }
            ended = std::move(now);
        }
        // The lock is released first, because another thread that reports a failure may need it.
        if (why != nullptr) {
            tell_alone();
            std::fprintf(
                stderr, "error: the connection to the worker %s is lost\n  caused by: %s\nhint: %s\n", name.c_str(), why, MEND);
            std::fflush(stderr);
            _exit(1);
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

// Returns the names of the workers whose connection broke.
std::vector<std::string> lost(workers & known) {
    std::lock_guard<std::mutex> lock(known.mutex);
    std::vector<bool>           dead(known.all.size(), false);
    // When the other process ends, its connections to this process close at once.
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

void tell_alone() {
    static std::mutex * one = new std::mutex;
    one->lock();
}

remote_failure explain_remote(const char * message) {
    // A worker only does what clients request, so any failure concerns the worker.
    if (serving) {
        return { "a client of this worker sent an invalid request",
                 "the client may be malicious or use another version of llama.cpp, or memory may be low; restart the worker, and\n"
                 "  let only trusted clients reach it" };
    }
    if (std::strstr(message, "ggml-rpc") == nullptr) {
        return {};
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
            say(err, err_size, "this build has no RPC support, or the address is invalid");
            return false;
        }
        workers & known = the_workers();
        {
            // The worker is recorded first, because the following call may end the process, and the worker is then
            // the cause.
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
        std::call_once(once, [] { std::thread(look_after_workers).detach(); });
    } catch (...) {
        // Without memory for the list, workers are not watched.
    }
}

void anneal_rpc_watch_clients(uint16_t port) {
    try {
        each_connection([&](int fd, const sockaddr_in &) {
            sockaddr_in own  = {};
            socklen_t   size = sizeof(own);
            if (getsockname(fd, (sockaddr *) &own, &size) == 0 && ntohs(own.sin_port) == port) {
                keep_alive(fd);
                // A client always reads what the worker sends.
                give_up_after(fd, 60000);
            }
        });
    } catch (...) {
        // As above, for clients.
    }
}

void anneal_rpc_serve(
        const char * endpoint, size_t threads, ggml_backend_dev_t * devices, size_t n_devices, char * err, size_t err_size) {
    using serve_fn = void (*)(const char *, const char *, size_t, size_t, ggml_backend_dev_t *);
    say(err, err_size, "this build has no RPC support");
    try {
        auto * serve = (serve_fn) function("ggml_backend_rpc_start_server");
        if (serve == nullptr) {
            return;
        }
        say(err, err_size, "ggml's server cannot listen on this address");
        // The reader of the output expects complete lines.
        (void) setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
        serving = true;
        serve(endpoint, nullptr, threads, n_devices, devices);
    } catch (const std::exception & error) {
        say(err, err_size, error.what());
    } catch (...) {
        say(err, err_size, "unknown C++ exception");
    }
}
