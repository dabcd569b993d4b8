// SPDX-License-Identifier: Apache-2.0
// --app and --role: programs that run next to the user's. Pure; thread: any.
//
// Words of a command may hold names in braces, which app_plan.h replaces:
//
//   {job}                  the first letters of the job's id
//   {python} {directory}   the workers' interpreter; the job's directory on this host
//   {head} {address}       the first host's address; that of the host on which the command runs
//   {ROLE.port} {ROLE.1}   a port kept for that role, the second one: of the first host for a role
//                          that runs there alone, else of the host on which the command runs
//   {ROLE.addresses}       "HOST:PORT","HOST:PORT",...: that role's first port wherever it runs
//   {node} {nodes}         this host's number, from 0, and how many there are
//   {rank} {world} {local} the client's rank, how many there are in all and on its host
//   {workers} {all-workers} --nproc-per-node; of all hosts together
//   {arguments}            --app-args, as words of their own
//   {program}              the user's program with its arguments, as words of their own
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

enum class AppPlace { kFirst, kOthers, kEvery };
// Ranks on which the user's program runs: the first, every one, or none.
enum class AppClient { kFirst, kEvery, kNone };

struct AppRole {
  std::string name;
  AppPlace place = AppPlace::kFirst;
  std::vector<std::string> command;
  int ports = 0;
  // Readiness check: none (""), "port" (its first port accepts connections), or a path that its
  // first port serves over HTTP.
  std::string ready = {};
  Environment environment = {};
  bool may_end = false;  // It may exit before the client without counting as failed.
};

struct AppSpec {
  std::string name;
  std::vector<AppRole> roles;
  AppClient client = AppClient::kFirst;
  Environment client_environment = {};
  // Run on the first host, again and again until it succeeds, before the client: all are there.
  std::vector<std::string> ready_command = {};
  // Roles take their arguments from the command line, whose first word is no program.
  bool serves_arguments = false;
};

// Ports that each host keeps for all roles together.
int port_count(const AppSpec& app);

// "NAME=COMMAND" or "NAME@first=COMMAND", @others, @every (the default); a role of one's own with a
// port, whose words are split at blanks and may be quoted.
Result<AppRole> parse_role(std::string_view text);
// The app that roles of one's own make.
AppSpec app_of_roles(std::vector<AppRole> roles);

}  // namespace ivy
