// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/log.h"

// Debian ships spdlog and fmt as shared libraries. Their header-only form, used only in this file,
// costs one slow compilation and saves every program from loading two libraries at start.
#define FMT_HEADER_ONLY 1
#define SPDLOG_FMT_EXTERNAL 1
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>

#include "proto/contract/remote_text.h"

namespace ivy::log {
namespace {

std::shared_ptr<spdlog::logger> make_logger(const std::string& program) {
  auto logger =
      std::make_shared<spdlog::logger>(program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%n: %v");
  logger->set_level(spdlog::level::trace);  // debug() and trace() filter.
  return logger;
}

// The only logger of a process. It is created on first use, because most runs never log.
std::shared_ptr<spdlog::logger>& logger() {
  static std::shared_ptr<spdlog::logger> instance = make_logger("ivyrun");
  return instance;
}

spdlog::level::level_enum current_level = spdlog::level::off;

}  // namespace

void set_program(std::string_view program) { logger() = make_logger(std::string(program)); }

void set_verbosity(int verbosity) {
  current_level = verbosity <= 0   ? spdlog::level::off
                  : verbosity == 1 ? spdlog::level::debug
                                   : spdlog::level::trace;
}

bool shows_debug() { return current_level <= spdlog::level::debug; }
bool shows_trace() { return current_level <= spdlog::level::trace; }

void debug(std::string_view text) {
  if (shows_debug()) logger()->log(spdlog::level::debug, RemoteText(std::string(text)).line());
}

void trace(std::string_view text) {
  if (shows_trace()) logger()->log(spdlog::level::trace, RemoteText(std::string(text)).line());
}

}  // namespace ivy::log
