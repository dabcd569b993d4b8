// SPDX-License-Identifier: Apache-2.0
#include "agent/node/hang/stack_methods.h"

#include <array>
#include <string_view>

namespace ivy {

std::vector<StackMethod> stack_methods(const StackFacts& facts) {
  std::vector<StackMethod> methods;
  if (facts.state == 'D') return methods;
  const bool can_handle_signals = facts.state != 'T' && facts.state != 't';
  const bool hook = facts.has_hook && can_handle_signals;
  if (hook && !facts.native) methods.push_back(StackMethod::kHook);
  if (facts.light) return methods;
  if (facts.is_python) methods.push_back(StackMethod::kPySpy);
  // If C frames were not requested, the interpreter's C frames explain little, but are better than
  // none.
  methods.push_back(StackMethod::kGdb);
  if (hook && facts.native) methods.push_back(StackMethod::kHook);
  return methods;
}

std::string why_no_stack(const StackFacts& facts) {
  if (facts.state == 'D')
    return "it is in uninterruptible sleep: no debugger can attach until the kernel wakes it";
  if (facts.light && facts.has_hook)
    return "it was stopped by a signal, so it cannot print its stack";
  if (facts.light) return "";
  if (facts.is_python && !facts.has_hook)
    return "neither py-spy nor gdb is on its host's PATH, and it has not registered ivyrun's hook "
           "(started with -I, -E or -S, by another user, or --no-python-hook)";
  if (facts.is_python)
    return "it was stopped by a signal, and neither py-spy nor gdb is on its host's PATH";
  return "gdb is not on its host's PATH";
}

bool has_stack(StackMethod method, const std::string& output) {
  const char* mark = method == StackMethod::kGdb     ? "\n#0 "
                     : method == StackMethod::kPySpy ? "\nThread "
                                                     : "File ";
  return output.find(mark) != std::string::npos;
}

std::string error_text_of(const std::string& output) {
  // Lines that gdb prints for every process; the files that it cannot read do not matter here.
  constexpr std::array<std::string_view, 4> kNoise = {"warning:", "[New", "Using host", "[Thread"};
  for (std::size_t at = 0; at < output.size();) {
    const std::size_t end = std::min(output.find('\n', at), output.size());
    const std::string_view line = std::string_view(output).substr(at, end - at);
    bool is_noise = line.empty();
    for (const std::string_view noise : kNoise) is_noise |= line.starts_with(noise);
    if (!is_noise) return std::string(line);
    at = end + 1;
  }
  return "";
}

}  // namespace ivy
