#pragma once

#include <string>

// What to say in place of ggml's `message` when the process must end; empty where it is not about workers. `what` is
// what failed, `mend` what to do.
struct remote_failure {
    std::string what;
    std::string mend;
};

remote_failure explain_remote(const char * message);
