// SPDX-License-Identifier: Apache-2.0
// The tools that can show a process's stack, in the order in which they are tried. Pure. Thread:
// any.
#pragma once

#include <string>
#include <vector>

namespace ivy {

enum class StackMethod {
  kHook,   // The process itself writes it: faulthandler, registered by our hook.
  kPySpy,  // Reads another process's Python frames.
  kGdb,    // Frames of C and C++.
};

struct StackFacts {
  char state = '?';        // A letter of /proc/PID/stat.
  bool is_python = false;  // Its program is an interpreter.
  bool has_hook = false;   // It catches the signals and holds the file open.
  bool native = false;     // C frames are requested.
  bool light = false;      // Only the hook may be used: no debugger may stop the process.
};

// Returns the tools to try. If empty, no tool applies, and why_no_stack() returns the reason: a
// process in uninterruptible sleep reacts to neither signals nor debuggers, a stopped one not to
// signals.
std::vector<StackMethod> stack_methods(const StackFacts& facts);
// Returns why stack_methods() is empty, for people.
std::string why_no_stack(const StackFacts& facts);

// Returns true if this tool's output contains a stack.
bool has_stack(StackMethod method, const std::string& output);
// Returns the first meaningful line of the output; empty if there is none.
std::string error_text_of(const std::string& output);

}  // namespace ivy
