// Log lines about ourselves for a person who looks for a fault: "ivyrun: ..." on standard error.
// What every user must read is not a log line: see launcher/report/diagnostic.h. Thread: any;
// the program's name is set before there is a second one.
#pragma once

#include <string_view>

namespace ivy::log {

// The word that begins each line; "ivyrun" until it is set.
void set_program(std::string_view program);

// How often -v was given: 0 nothing, 1 debug lines, 2 and more also trace lines.
void set_verbosity(int verbosity);

// True if lines of this level are shown. Ask before building an expensive line.
bool shows_debug();
bool shows_trace();

// One line without its newline; control characters become \xNN (proto/contract/remote_text.h).
// Never log a token or a value of a user's environment.
void debug(std::string_view text);
void trace(std::string_view text);

}  // namespace ivy::log
