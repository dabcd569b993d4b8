# SPDX-License-Identifier: Apache-2.0
# ivy_launch_core: the launcher's pure part, and the one file that knows CLI11.
set(IVY_LAUNCH_CORE_SOURCES
  drill/drill_schedule.cc drill/fault_log.cc
  fetch/fetch_names.cc
  hang/flight_analysis.cc hang/flight_record.cc hang/nccl_lines.cc hang/operation_lines.cc
  hang/stack_lines.cc hang/stack_text.cc
  job/core/job_state.cc job/core/job_workers.cc job/core/metrics_text.cc
  job/hosts/host_failures.cc job/hosts/membership.cc job/hosts/node_ranks.cc job/hosts/notice_board.cc
  job/ranks/rank_event_log.cc job/ranks/rank_rows.cc
  links/link_step.cc
  options/activation.cc options/app_file.cc options/app_table.cc options/cause_list.cc options/config_files.cc options/drill_rule.cc
  options/env_files.cc options/exec_command.cc options/exports.cc options/fetch_rule.cc options/host_filter.cc
  options/hosts.cc
  options/option_help.cc options/option_scan.cc options/option_table.cc options/option_values.cc
  options/options.cc options/other_launchers.cc options/pattern.cc options/pod.cc options/policy.cc
  options/tf_roles.cc
  options/toml_file.cc options/transport_kind.cc
  plan/allocation.cc plan/app_plan.cc plan/batch_hosts.cc plan/core_split.cc
  plan/device_and_slurm_variables.cc plan/device_checks.cc plan/device_plan.cc plan/explain_env.cc
  plan/failure_policy.cc plan/framework_variables.cc plan/jax_variables.cc
  plan/master_address.cc plan/mpi_plan.cc plan/placement.cc plan/plan.cc plan/plan_checks.cc
  plan/plan_context.cc plan/plan_text.cc plan/progress_file.cc plan/restart_policy.cc plan/topology_order.cc plan/worker_environment.cc
  plan/worker_ports.cc
  report/check_verdict.cc report/device_lines.cc report/diagnostic.cc report/host_findings.cc report/label.cc
  report/message_table.cc report/missing_module.cc report/placeholders.cc report/verdict.cc
  stage/python_environment.cc stage/relocation.cc
  stage/stage_files.cc stage/stage_patterns.cc
  slurm/allocation_end.cc slurm/nodelist.cc slurm/slurm_allocation.cc slurm/step.cc)
list(TRANSFORM IVY_LAUNCH_CORE_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
add_library(ivy_launch_core STATIC ${IVY_LAUNCH_CORE_SOURCES})
target_link_libraries(ivy_launch_core PUBLIC ivy_contract ivy_proto ivy_options ivy_json ivy_stage_wire)
find_path(IVY_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
# The archive itself: gRPC, which also needs it, is linked statically as well.
find_library(IVY_RE2_ARCHIVE NAMES libre2.a REQUIRED)
target_link_libraries(ivy_launch_core PRIVATE ${IVY_RE2_ARCHIVE})
target_include_directories(ivy_launch_core SYSTEM PRIVATE ${IVY_CLI11_INCLUDE} ${IVY_TOMLPLUSPLUS_INCLUDE})
# toml++ alone is as much as the rest of the folder.
set_source_files_properties(options/app_file.cc options/toml_file.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
# Where the programs look for it, as in an installed tree.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share/ivyrun)
file(CREATE_LINK ${CMAKE_CURRENT_LIST_DIR}/apps ${CMAKE_BINARY_DIR}/share/ivyrun/apps SYMBOLIC)
