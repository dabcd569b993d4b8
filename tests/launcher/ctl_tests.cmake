# SPDX-License-Identifier: Apache-2.0
# ivy_ctl_test: the job socket, ivyctl's parts and the way into the background.
add_executable(ivy_ctl_test
  ctl_options_test.cc ctl_wire_test.cc detach_test.cc ended_jobs_test.cc hosted_job_test.cc
  job_record_test.cc job_socket_descriptors_test.cc job_socket_test.cc rank_names_test.cc)
target_link_libraries(ivy_ctl_test PRIVATE ivy_ctl ivy_job GTest::gtest_main)
set(IVY_CTL_PURE_SUITES "ChooseJob*:Ctl*:FollowQueue*:JobRecord.*:RankNames.*")
gtest_discover_tests(ivy_ctl_test TEST_FILTER "${IVY_CTL_PURE_SUITES}" PROPERTIES LABELS pure)
gtest_discover_tests(ivy_ctl_test TEST_FILTER "-${IVY_CTL_PURE_SUITES}" TEST_LIST IVY_CTL_LOOP_TESTS
                     PROPERTIES LABELS loopback TIMEOUT 60)
