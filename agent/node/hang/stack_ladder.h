// Which ways there are to a process's stack, in the order in which they are tried. Pure.
// Thread: any.
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
  char state = '?';        // As in /proc/PID/stat.
  bool is_python = false;  // Its program is an interpreter.
  bool has_hook = false;   // It catches the signals and holds the file open.
  bool native = false;     // Frames of C are asked for.
  bool light = false;      // Nothing may hold it up.
};

// Empty: none, and why_no_stack() says why. What sleeps uninterruptibly answers no signal and no
// debugger; what was stopped answers no signal.
std::vector<StackWay> stack_ways(const StackFacts& facts);
std::string why_no_stack(const StackFacts& facts);

// Has this tool's output a stack in it?
bool has_stack(StackWay way, const std::string& output);
// The line that says why not; empty where it says nothing.
std::string complaint_of(const std::string& output);

}  // namespace ivy
