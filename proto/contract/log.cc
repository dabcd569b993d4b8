#include "proto/contract/log.h"

#include <atomic>
#include <cstdio>
#include <string>

#include "proto/contract/remote_text.h"

namespace ivy::log {
namespace {

std::string program_name = "ivyrun";
std::atomic<int> shown = 0;

// One call for a line, which stdio keeps whole beside those of other threads.
void write_line(std::string_view text) {
  const std::string line = program_name + ": " + RemoteText(std::string(text)).line() + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void set_program(std::string_view program) { program_name = program; }
void set_verbosity(int verbosity) { shown = verbosity; }

bool shows_debug() { return shown >= 1; }
bool shows_trace() { return shown >= 2; }

void debug(std::string_view text) {
  if (shows_debug()) write_line(text);
}

void trace(std::string_view text) {
  if (shows_trace()) write_line(text);
}

}  // namespace ivy::log
