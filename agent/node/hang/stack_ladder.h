// SPDX-License-Identifier: Apache-2.0
// The tools that can show a process's stack, in the order in which they are tried. Pure. Thread:
// any.
#pragma once

#include <string>
#include <vector>

namespace ivy {

enum class StackWay {
  kHook,   // The process writes it itself: faulthandler, registered by our hook.
  kPySpy,  // Reads another process's Python frames.
  kGdb,    // Frames of C and C++.
};

struct StackFacts {
  char state = '?';        // The process state, a letter of /proc/PID/stat.
  bool is_python = false;  // Its program is an interpreter.
  bool has_hook = false;   // It catches the signals and holds the file open.
  bool native = false;     // C frames are asked for.
  bool light = false;      // Only the hook may be asked: no debugger may stop it.
};

// Empty: no tool applies, and why_no_stack() says why. A process in uninterruptible sleep answers
// neither signal nor debugger; a stopped one answers no signal.
std::vector<StackWay> stack_ways(const StackFacts& facts);
std::string why_no_stack(const StackFacts& facts);

// True if this tool's output contains a stack.
bool has_stack(StackWay way, const std::string& output);
// The first line of the output that is not mere noise; empty when there is none.
std::string complaint_of(const std::string& output);

}  // namespace ivy
