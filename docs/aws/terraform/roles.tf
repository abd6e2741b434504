data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  queue_name = coalesce(var.interruption_queue, var.cluster_name)

  # The placeholders of the generated policies.
  names = {
    partition          = data.aws_partition.current.partition
    account            = data.aws_caller_identity.current.account_id
    region             = data.aws_region.current.name
    cluster_name       = var.cluster_name
    interruption_queue = local.queue_name
    node_role          = var.node_role
  }

  cluster_arn = "arn:${local.names.partition}:eks:${local.names.region}:${local.names.account}:cluster/${var.cluster_name}"
}

resource "aws_iam_policy" "plan" {
  name   = "${var.cluster_name}-reconciler-plan"
  policy = templatefile("${path.module}/policy-plan.json.tftpl", local.names)
}

resource "aws_iam_policy" "run" {
  name   = "${var.cluster_name}-reconciler-run"
  policy = templatefile("${path.module}/policy-run.json.tftpl", local.names)
}

resource "aws_iam_policy" "reboot" {
  count = var.allow_reboot ? 1 : 0

  name   = "${var.cluster_name}-reconciler-reboot"
  policy = templatefile("${path.module}/policy-reboot.json.tftpl", local.names)
}

resource "aws_iam_role" "plan" {
  name = "${var.cluster_name}-reconciler-plan"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { AWS = var.plan_principal }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role" "run" {
  name = "${var.cluster_name}-reconciler-run"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
      Condition = {
        StringEquals = {
          "aws:SourceAccount"                         = local.names.account
          "aws:RequestTag/kubernetes-namespace"       = var.run_namespace
          "aws:RequestTag/kubernetes-service-account" = var.run_service_account
        }
        ArnEquals = { "aws:SourceArn" = local.cluster_arn }
      }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "plan" {
  role       = aws_iam_role.plan.name
  policy_arn = aws_iam_policy.plan.arn
}

resource "aws_iam_role_policy_attachment" "run" {
  role       = aws_iam_role.run.name
  policy_arn = aws_iam_policy.run.arn
}

resource "aws_iam_role_policy_attachment" "reboot" {
  count = var.allow_reboot ? 1 : 0

  role       = aws_iam_role.run.name
  policy_arn = aws_iam_policy.reboot[0].arn
}

resource "aws_eks_pod_identity_association" "run" {
  cluster_name    = var.cluster_name
  namespace       = var.run_namespace
  service_account = var.run_service_account
  role_arn        = aws_iam_role.run.arn
}
