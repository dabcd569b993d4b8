# SPDX-License-Identifier: Apache-2.0
# The supervisor. Its pure parts need no other process; the rest drives a real ivy-node.
add_executable(supervisor_parts_tests
  app_child_test.cc cloud_notices_test.cc container_runtime_test.cc ending_test.cc event_budget_test.cc flight_client_test.cc lease_test.cc
  mpi_exec_test.cc mpi_identity_test.cc mpi_ranks_test.cc node_rank_file_test.cc
  observed_pages_test.cc old_bundles_test.cc own_package_test.cc program_facts_test.cc
  rank_usage_test.cc replacements_test.cc reserved_port_test.cc stack_methods_test.cc staged_python_test.cc
  worker_state_test.cc)
target_link_libraries(supervisor_parts_tests PRIVATE ivy_node_core ivy_handshake OpenSSL::Crypto GTest::gtest_main)
set_source_files_properties(own_package_test.cc PROPERTIES COMPILE_DEFINITIONS IVY_SOURCE="${CMAKE_SOURCE_DIR}")
gtest_discover_tests(supervisor_parts_tests DISCOVERY_MODE PRE_TEST PROPERTIES LABELS pure)

# Accelerators: recorded trees and masks; then ivy-probe, with a test double of NVML.
add_executable(device_tests device_files_test.cc device_health_test.cc device_mask_test.cc)
target_link_libraries(device_tests PRIVATE ivy_devices GTest::gtest_main)
gtest_discover_tests(device_tests DISCOVERY_MODE PRE_TEST PROPERTIES LABELS pure)
add_executable(probe_tests probe_test.cc)
target_link_libraries(probe_tests PRIVATE ivy_devices GTest::gtest_main)
target_compile_definitions(probe_tests PRIVATE IVY_PROBE_BINARY="$<TARGET_FILE:ivy-probe>"
  IVY_NVML_DOUBLE="$<TARGET_FILE_DIR:nvml_double>")
add_dependencies(probe_tests ivy-probe nvml_double)
gtest_discover_tests(probe_tests DISCOVERY_MODE PRE_TEST PROPERTIES LABELS loopback TIMEOUT 120)

add_executable(supervisor_tests
  supervisor_ending_test.cc supervisor_relay_test.cc supervisor_restart_test.cc supervisor_test.cc
  supervisor_transport_test.cc
  ${CMAKE_SOURCE_DIR}/tests/support/fake_launcher.cc)
target_link_libraries(supervisor_tests PRIVATE
  ivy_node_core ivy_handshake OpenSSL::SSL OpenSSL::Crypto GTest::gtest_main)
target_compile_definitions(supervisor_tests PRIVATE IVY_NODE_BINARY="$<TARGET_FILE:ivy-node>")
add_dependencies(supervisor_tests ivy-node)
gtest_discover_tests(supervisor_tests DISCOVERY_MODE PRE_TEST
                     PROPERTIES LABELS loopback TIMEOUT 120)
