#pragma once

#include <string>

// Explanation that replaces ggml's `message` when the process must end; empty if the failure does not concern
// workers. `what` is the failure, `mend` the hint.
struct remote_failure {
    std::string what;
    std::string mend;
};

remote_failure explain_remote(const char * message);

// A thread must call this function before it ends the process with a message. Other threads that call the function
// wait until the process ends.
void tell_alone();
