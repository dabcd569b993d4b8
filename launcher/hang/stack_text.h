// SPDX-License-Identifier: Apache-2.0
// Converts the output of faulthandler, py-spy and gdb about a process's threads to one form. Pure;
// thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

struct StackThread {
  std::string name;  // "main thread", "thread pin_memory", "thread".
  // Innermost first: "all_reduce (torch/distributed/distributed_c10d.py:4174)". Addresses and
  // numbers that differ from process to process are left out.
  std::vector<std::string> frames;
  bool operator==(const StackThread&) const = default;
};

// tool: "faulthandler", "py-spy" or "gdb". The main thread comes first, where it can be told. A
// text that is cut off gives what there is.
std::vector<StackThread> parse_stack(std::string_view tool, std::string_view text);

// In which library's collective the thread is: "torch's all_reduce at train.py:12"; empty: in none.
std::string collective_of(const StackThread& thread);

}  // namespace ivy
