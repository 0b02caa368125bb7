// Restriction of a worker to the processes of one user.
//
// ggml's RPC server listens on a TCP port, which every user of the machine can reach, and its protocol has no
// password. The kernel knows the owner of the process at the other end of a local connection: /proc/net/tcp lists the
// owner of each socket. ggml has no hook between accept() and the first byte that it reads, but writes a line to
// stdout at that point. Therefore, this file replaces stdout with a stream. A write to the stream first checks all
// connections, on ggml's own thread. A rejected connection is replaced with a connection that has ended, and ggml
// continues with the next client.

#include "shim.h"

#include "remote.hpp"

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__linux__) && defined(__GLIBC__)

namespace {

uint16_t guarded_port = 0;

// Connections that passed the check, by file descriptor and inode of the socket.
std::set<std::pair<int, ino_t>> & served() {
    static auto * one = new std::set<std::pair<int, ino_t>>;
    return *one;
}

// Formats an address as in /proc/net/tcp and /proc/net/tcp6.
std::string as_listed(const sockaddr_in & address, bool mapped) {
    char text[64];
    std::snprintf(text, sizeof(text), "%s%08" PRIX32 ":%04X", mapped ? "0000000000000000FFFF0000" : "",
                  (uint32_t) address.sin_addr.s_addr, (unsigned) ntohs(address.sin_port));
    return text;
}

enum class owner { unknown, ours, other };

// Returns the owner of the socket `peer` at the other end of a connection to `own`. Only an open socket counts,
// because some kernels report root as the owner of a closed socket.
owner owner_of(const sockaddr_in & peer, const sockaddr_in & own, unsigned & user) {
    for (const bool mapped : { false, true }) {
        FILE * list = std::fopen(mapped ? "/proc/net/tcp6" : "/proc/net/tcp", "re");
        if (list == nullptr) {
            continue;
        }
        const std::string from = as_listed(peer, mapped), to = as_listed(own, mapped);
        char              line[512], local[80], remote[80];
        owner             found = owner::unknown;
        while (std::fgets(line, sizeof(line), list) != nullptr) {
            unsigned      state = 0, uid = 0;
            unsigned long inode = 0;
            // sl, addresses, state, queues, timer, retransmits, uid, timeout, inode
            if (std::sscanf(line, " %*[^:]: %79s %79s %x %*s %*s %*s %u %*s %lu", local, remote, &state, &uid, &inode) != 5 ||
                from != local || to != remote) {
                continue;
            }
            constexpr unsigned ESTABLISHED = 1;
            if (state == ESTABLISHED && inode != 0) {
                user  = uid;
                found = uid == 0 || uid == geteuid() ? owner::ours : owner::other;
            }
        }
        std::fclose(list);
        if (found != owner::unknown) {
            return found;
        }
    }
    return owner::unknown;
}

// Replaces the connection `fd` with a connection that has ended. The bytes that the client has already sent are never
// read.
void replace_by_end(int fd) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 && close(ends[1]) == 0 && dup2(ends[0], fd) == fd) {
        close(ends[0]);
        return;
    }
    // A client of another user must not be served.
    std::fprintf(stderr, "error: cannot refuse a client of another user: too many open files\n"
                         "hint: raise the limit with `ulimit -n`\n");
    _exit(1);
}

void look_at_connections() {
    DIR * folder = opendir("/proc/self/fd");
    if (folder == nullptr) {
        std::fprintf(stderr, "error: cannot determine the users of the clients: /proc/self/fd cannot be read\n"
                             "hint: mount /proc, or serve all users of this machine with --trust-users\n");
        _exit(1);
    }
    std::set<std::pair<int, ino_t>> now;
    while (const dirent * entry = readdir(folder)) {
        const int   fd = std::atoi(entry->d_name);
        sockaddr_in own = {}, peer = {};
        socklen_t   own_size = sizeof(own), peer_size = sizeof(peer);
        struct stat found    = {};
        if (entry->d_name[0] == '.' || getsockname(fd, (sockaddr *) &own, &own_size) != 0 || own.sin_family != AF_INET ||
            ntohs(own.sin_port) != guarded_port || fstat(fd, &found) != 0) {
            continue;
        }
        int       listens = 0;
        socklen_t size    = sizeof(listens);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0) {
            continue;
        }
        const std::pair<int, ino_t> one{ fd, found.st_ino };
        if (served().count(one) > 0) {
            now.insert(one);
            continue;
        }
        unsigned user = 0;
        // A client that has already disconnected has no address.
        const bool is_there = getpeername(fd, (sockaddr *) &peer, &peer_size) == 0 && peer.sin_family == AF_INET;
        switch (is_there ? owner_of(peer, own, user) : owner::unknown) {
            case owner::ours:
                now.insert(one);
                break;
            case owner::other:
                std::fprintf(stderr,
                             "warning: a client of user %u was refused: this worker serves its own user and root\n"
                             "hint: --trust-users serves all users of this machine\n",
                             user);
                replace_by_end(fd);
                break;
            case owner::unknown:
                std::fprintf(stderr, "warning: a client was refused: its user is unknown\n");
                replace_by_end(fd);
                break;
        }
    }
    closedir(folder);
    served() = std::move(now);
}

ssize_t write_guarded(void * /* cookie */, const char * text, size_t size) {
    look_at_connections();
    size_t done = 0;
    while (done < size) {
        const ssize_t written = write(STDOUT_FILENO, text + done, size - done);
        if (written <= 0) {
            break;
        }
        done += (size_t) written;
    }
    return (ssize_t) done;
}

bool is_readable(const char * path) {
    return access(path, R_OK) == 0;
}

}  // namespace

bool anneal_rpc_guard(uint16_t port) {
    if (!is_readable("/proc/net/tcp") || !is_readable("/proc/self/fd")) {
        return false;
    }
    cookie_io_functions_t functions = {};
    functions.write                 = write_guarded;
    FILE * guarded                  = fopencookie(nullptr, "w", functions);
    if (guarded == nullptr || setvbuf(guarded, nullptr, _IOLBF, BUFSIZ) != 0) {
        return false;
    }
    guarded_port = port;
    std::fflush(stdout);
    stdout = guarded;
    return true;
}

#else

bool anneal_rpc_guard(uint16_t) {
    return false;
}

#endif
