{{- define "sis.chart" -}}
{{- .Values.nameOverride | default .Chart.Name -}}
{{- end -}}

{{/* What everything of the release is called. */}}
{{- define "sis.name" -}}
{{- $chart := include "sis.chart" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $chart .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $chart | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sis.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "sis.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* Where clients call, one per line: every server by its name. */}}
{{- define "sis.addresses" -}}
{{- $host := printf "%s.%s.svc:%d" (include "sis.name" .) .Release.Namespace (int .Values.ports.grpc) -}}
{{- $addresses := list -}}
{{- range $i := until (int .Values.servers) -}}
{{- $addresses = append $addresses (printf "%s-%d.%s" (include "sis.name" $) $i $host) -}}
{{- end -}}
{{- join "\n" $addresses -}}
{{- end -}}

{{/* Of the Redis that the chart starts. */}}
{{- define "sis.redisAddress" -}}
{{- printf "%s-redis.%s.svc:6379" (include "sis.name" .) .Release.Namespace -}}
{{- end -}}

{{/* Labels that pods are selected by: dict "root" $ "component" "server". */}}
{{- define "sis.selector" -}}
app.kubernetes.io/name: {{ include "sis.chart" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "sis.labels" -}}
{{ include "sis.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "sis.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- $cuda := and (gt (int .Values.gpu.count) 0) (not (hasSuffix "-cuda" $tag)) -}}
{{- printf "%s:%s%s" .Values.image.repository $tag (ternary "-cuda" "" $cuda) -}}
{{- end -}}
{{- end -}}
